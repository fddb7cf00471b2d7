"""Schedules: the times at which a schedule fires, and the decisions about its runs.

Read: times, state, runs
"""
