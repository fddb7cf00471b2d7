"""Schedules: the times at which a schedule fires, and the decisions about its runs.

Read in this order: times, state, runs
"""
