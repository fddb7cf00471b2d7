"""Crash parts of a running system. Every workflow must still reach exactly one outcome. Run with `python -m chaos`."""
