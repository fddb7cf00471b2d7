"""Whole worlds in one loop: the invariants of every workflow, for many seeds."""
