"""The client of callers and operators.

Read in this order: client, summaries, workflow_list, batch, batch_files, files, workflow, streamed_text, thread,
schedules, known_teams, operations
"""
