"""Evaluation of teams and agents against labelled requests.

Read in this order: suite, runner
"""
