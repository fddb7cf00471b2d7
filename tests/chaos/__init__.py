"""A running system under a hail of crashes: every workflow must still reach its one outcome. `python -m chaos`."""
