"""The door for agents that speak A2A, the Agent2Agent protocol, in the versions 1.0 and 0.3.

Addresses          door, routes
Cards              cards
Requests           handler, messages
Tasks from the log tasks, reading

Only `door` is imported at the start of a gateway. The others need the extra `a2a`, and load with the first request.
"""
