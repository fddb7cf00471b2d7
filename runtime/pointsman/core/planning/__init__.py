"""The planner's and the router's protocol, and the validation of the plans and selections.

Read in this order: summary, role_tasks, planner, router, acceptance, validation
"""
