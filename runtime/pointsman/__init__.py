"""Pointsman: teams of LLM agents over NATS JetStream."""
