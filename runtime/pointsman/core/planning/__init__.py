"""The planner's and the router's protocol, and the validation of what they return.

Read in this order: role_tasks, planner, router, acceptance, validation
"""
