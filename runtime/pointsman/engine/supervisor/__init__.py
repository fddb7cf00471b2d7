"""The supervisor process: read inputs, decide, commit to the log, publish the outbox, acknowledge.

Main loop           engine, decoder, inbound, thread_gate, committer, outbox_publisher, stale_messages, acknowledger
Schedules           scheduler
Several instances   admission, daily_usage, ownership, startup_backlog, recovery
Housekeeping        ended_cache, retention, object_retention, stream_integrity
Health and metrics  circuit_breaker, agent_load, queue_metrics, spans
"""
