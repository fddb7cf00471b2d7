"""Replay recorded logs: record what a decision depended on, decide again, report differences.

Read in this order: decision_context, replayer
"""
