"""The index of the workflows of a namespace. The dashboard and the gateway build the index in memory from the log.

Read in this order: projection, workflows, rows, callers, activity
"""
