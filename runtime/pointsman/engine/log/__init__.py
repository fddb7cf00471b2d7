"""The workflow log on the bus: read and extend the log, and decode messages that may begin a workflow.

Read in this order: reader, follower, bucket_follower, workflow_log, records, requests
"""
