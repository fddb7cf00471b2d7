"""Batches over HTTP. Read in this order: models, routes."""
