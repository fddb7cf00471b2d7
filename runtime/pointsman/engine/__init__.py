"""The processes: a supervisor is the shell around the core, a worker the shell around agents. Each is asyncio over
the bus's port, and knows no NATS.

To read in this order:

the supervisor       supervisor, receiving, intake, arrivals, committing, workflow_log, sending, strangers,
                     settling, ends, spans
several of them      admission, sharing, backlog, mending, trimming, queues, loads, circuits
the worker           worker, desks, handoffs, attempt, handlers, answering, reports, journal, meters
both                 announcing, insisting, burial, continuity, steady, deadlines, health, signals,
                     loading, fault_points
operators            history, approvals, dead_letters, unadmitted, archive
"""
