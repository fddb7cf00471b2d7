"""Whole worlds in one loop: what must hold of every workflow, tried over seeds."""
