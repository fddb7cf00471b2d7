"""The workflow log on the bus: read it, extend it, decode what may begin a workflow.

Read in this order: reader, follower, bucket_follower, workflow_log, records, requests
"""
