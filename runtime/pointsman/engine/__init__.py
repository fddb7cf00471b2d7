"""The processes: a supervisor runs the core for a team, and a worker runs agents.

Supervisors and workers run on asyncio over the bus port and import no NATS.

Folders         supervisor, worker, operations, log, process
"""
