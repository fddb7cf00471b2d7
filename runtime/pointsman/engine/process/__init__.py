"""The parts that supervisor and worker processes share.

Read in any order: retrying, dead_lettering, heartbeat, agent_versions, broker_clock, discovery, consumers,
handoff_codec, health, signals, fault_injection
"""
