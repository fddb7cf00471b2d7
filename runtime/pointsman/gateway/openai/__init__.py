"""The OpenAI-compatible API: each team is a model, and each request is a workflow.

Read in this order: messages, housekeeping, commentary, models, chat, responses, response_events, conversation
"""
