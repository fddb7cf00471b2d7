"""What a workflow costs, measured beside the least that the same messages can cost. Run by `python -m benchmarks`."""
