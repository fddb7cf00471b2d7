"""Measure the cost of a workflow beside a floor that only sends the same messages. Run by `python -m benchmarks`."""
