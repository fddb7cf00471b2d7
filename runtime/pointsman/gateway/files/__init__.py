"""Files over HTTP: uploads of callers, and the files of workflows.

Read in this order: uploads, routes
"""
