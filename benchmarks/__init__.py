"""Compare the cost of a workflow with a floor that only sends the same messages. Run `python -m benchmarks`."""
