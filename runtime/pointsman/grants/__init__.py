"""Grants: the rights of each role at the broker, and their forms: server users, JWTs and an auth callout.

`permissions` is the one table of rights. All other modules follow this table.

permissions, accounts, server_config, jwt, folder, push, probe, policy, callout
"""
