"""Faults that are planted one at a time, each in a copy of the source, to see that a test names it.

`make mutants` plants all of `table.MUTANTS`. docs/patterns.md explains the names of the mechanisms.
"""
