"""The strategies of a team: the start, the steps and the end of a workflow.

Read in this order: registry, adaptive, pipeline, fan_out, choreography, fixed
"""
