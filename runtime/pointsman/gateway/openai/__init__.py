"""The OpenAI-compatible API: each team is a model, and each request is a workflow.

Read in this order: parts, messages, attachments, housekeeping, commentary, models, chat, responses, response_events,
conversation
"""
