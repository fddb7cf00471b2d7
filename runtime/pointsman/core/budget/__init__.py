"""The shares of calls, tokens, cost, tasks and plans that an attempt or a nested team may use.

Read in this order: reservation, team_quota, token_bucket
"""
