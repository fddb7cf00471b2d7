"""Read-only views of a log for people and telemetry.

Read in this order: trace, trace_status, timeline, formatting
"""
