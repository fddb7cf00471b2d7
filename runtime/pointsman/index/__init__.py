"""The index of the workflows of a namespace, which the dashboard and the gateway keep in memory from the log.

Read in this order: projection, workflows, rows, callers, activity
"""
