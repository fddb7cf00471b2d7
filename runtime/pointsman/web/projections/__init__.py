"""Projections of the streams that only the dashboard shows.

Read in this order: queued, dead_letters, threads, schedules, deliveries, timeline
"""
