"""Projections of the log and the streams that the dashboard shows.

Read in this order: projection, index, rows, queued, dead_letters, threads, schedules, activity, timeline
"""
