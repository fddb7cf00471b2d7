"""The moves of one task before its result: start, dispatch, hold, wait, abandon.

Read in this order: dispatch, agent_selection, handoff_input, expressions, for_each, questions, child_workflow
"""
