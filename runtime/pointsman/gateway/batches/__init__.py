"""Batches over HTTP: many requests of one caller to a team, sent by whichever gateway has the batch.

Read in this order: records, rows, feed, runner, models, routes
"""
