"""Grants: users of the broker with the rights of a role, by a server configuration, by JWTs, or by an auth callout.

`permissions` has the table of rights. All other modules use this table.

Read in this order: permissions, accounts, server_config, jwt, folder, push, probe, policy, callout
"""
