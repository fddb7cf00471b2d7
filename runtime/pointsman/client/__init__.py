"""The client of callers and operators.

Read in this order: client, summaries, batch, batch_files, files, workflow, thread, schedules, known_teams, operations
"""
