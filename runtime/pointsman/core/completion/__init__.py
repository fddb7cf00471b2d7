"""The end of a workflow: synthesis, conflict detection, the outcome and the texts for the caller.

Read in this order: synthesis, conflicts, outcome, caller_messages
"""
