"""Durable batches: many requests of one caller to a team, sent by whichever dashboard or gateway has the batch.

Read in this order: records, rows, feed, runner, service
"""
