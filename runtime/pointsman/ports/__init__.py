"""The protocols between the engine and the world. Each has a real adapter and an in-memory twin.

Read in any order: bus, key_value, clock, model
"""
