"""The strategies of a team: how each one begins, advances and finishes a workflow.

Read in this order: registry, adaptive, pipeline, fan_out, choreography
"""
