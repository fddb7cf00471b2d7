"""The worker process: receive handoffs, run agents, publish results.

Read in this order: engine, agent_slots, fair_puller, queue_sharing, handoff_processor, attempt, executors,
timeout_scheduler, step_journal, progress_publisher, message_reader, file_transfer, rate_limiter, resources,
loop_watchdog
"""
