"""The endpoint for agents that use A2A, the Agent2Agent protocol, in the versions 1.0 and 0.3.

Addresses          endpoint, routes
Cards              cards
Requests           handler, messages, refusals
Tasks from the log tasks, reading, parts
Text of answers    answer_text
Push notifications push, push_store, push_sender

Only `endpoint` and `push_store` are imported at the start of a gateway. The other modules need the extra `a2a`, and are
imported with the first request, or with the first receiver of push notifications.
"""
