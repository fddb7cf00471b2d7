"""The processes: a supervisor is the shell around the core, a worker the shell around agents.

Both run on asyncio over the bus port and import no NATS.

The folders     supervisor, worker, operations, log, process
"""
