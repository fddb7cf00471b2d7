"""Grants: the rights of each role at the broker, as users of a server configuration, as JWTs, or by an auth callout.

`permissions` has the table of rights. All other modules use this table.

permissions, accounts, server_config, jwt, folder, push, probe, policy, callout
"""
