"""The bus in memory: the twin of the JetStream bus for tests and simulation.

Read in this order: bus, broker, streams, consumers, subscriptions, registry, key_value
"""
