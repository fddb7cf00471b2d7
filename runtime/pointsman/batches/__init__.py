"""Durable batches: many requests of one caller to a team. One dashboard or gateway at a time sends a batch.

Read in this order: records, rows, feed, runner, service
"""
