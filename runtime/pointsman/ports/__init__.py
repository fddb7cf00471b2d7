"""The protocols between the engine and other systems. Each protocol has a real adapter and an in-memory twin.

Read in any order: bus, key_value, clock, model
"""
