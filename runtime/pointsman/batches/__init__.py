"""Durable batches: many requests of one caller to a team, sent by one dashboard or gateway at a time.

Read in this order: records, rows, feed, runner, service
"""
