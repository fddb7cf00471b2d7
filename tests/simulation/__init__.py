"""Simulate whole worlds in one event loop for many seeds, and check the invariants of every workflow."""
