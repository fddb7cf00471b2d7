"""Threads: the order of the turns of a conversation, and the history that a turn receives.

Read: turns, past_turns
"""
