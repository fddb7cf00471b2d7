"""Evaluation of teams and agents against labelled requests.

Read in this order: yaml_reader, suite, runner
"""
