"""The endpoint for front ends that speak AG-UI, the Agent User Interaction Protocol.

Read in this order: events, runs
"""
