"""The values that the core works on: state, lifecycle tables, inputs and messages.

Read in this order: lifecycle, state, inputs, messages, agent_health, diagram
"""
