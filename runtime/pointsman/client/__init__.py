"""The client of callers and operators.

Read in this order: client, batch, files, workflow, thread, known_teams, operations
"""
