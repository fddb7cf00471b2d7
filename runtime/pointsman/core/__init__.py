"""The workflow core: pure functions without I/O, clock or randomness.

    entries = decide(state, inputs, context)   decide what the inputs mean
    state   = fold_entries(entries, state)     apply the entries
    sent    = outbox(state, subjects)          list all messages that must be on the bus in this state

Read the spine first. Then read the folders: each folder is one concern of the protocol.

The spine       decide, evolve, outbox, decision, results, resume, limits, user_messages
The folders     model, tasks, attempts, planning, strategies, completion, questions, threads, schedules, budget, views,
                replay
"""
