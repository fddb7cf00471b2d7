"""The gateway: teams over HTTP. Only the modules of this package need the extra `gateway`.

Access            callers, keys, oidc, rates, access
The log           feed, streams, early_items, events
The REST API      models, problems, invalid_requests, views, workflows, questions, schedules, catalog, dead_letters,
                  health, page, cloud_events, hooks, hook_config, hook_signatures, webhooks
OpenAI's API      openai
AG-UI             agui
Files             files
Batches           batches
MCP               mcp, protected_resource
A2A               a2a
The process       context, app, openapi, server
"""
