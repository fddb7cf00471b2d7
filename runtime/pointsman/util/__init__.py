"""General helpers, which do not depend on Pointsman.

Read in any order: environment, exceptions, files, nkeys, scrubber, network, lazy_import, schema_validation, threads,
process_groups, child_processes, oidc, signal
"""
