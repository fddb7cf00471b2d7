"""Threads: the order of the turns of a conversation, and the history that a turn receives.

Read in this order: turns, past_turns
"""
