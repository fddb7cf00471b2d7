"""Plant faults one at a time in a copy of the source, to verify that the named tests fail.

`make mutants` plants all of `table.MUTANTS`. docs/patterns.md explains the names of the mechanisms.
"""
