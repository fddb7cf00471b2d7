"""The logs and records on the bus: read and extend them, follow streams, and decode messages to inputs of the core.

Read in this order: reader, follower, bucket_follower, workflow_log, records, requests
"""
