"""Durable batches: many requests of one caller to a team. One dashboard or gateway at a time sends the requests.

Read in this order: records, rows, feed, runner, service
"""
