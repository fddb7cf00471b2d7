"""Projections of streams for the dashboard.

Read in this order: queued, dead_letters, threads, schedules, deliveries, timeline
"""
