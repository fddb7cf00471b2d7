"""The endpoint for front ends that use AG-UI, the Agent User Interaction Protocol.

Read in this order: events, runs
"""
