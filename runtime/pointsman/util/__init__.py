"""Helpers without knowledge of Pointsman.

Read in any order: environment, files, nkeys, scrubber, network, lazy_import, threads, process_groups, child_processes
"""
