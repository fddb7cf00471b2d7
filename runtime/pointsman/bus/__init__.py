"""The bus: streams, consumers and a registry behind one port, on NATS JetStream and in memory.

To read in this order:

JetStream        jetstream, nats_client, connection, asking, replies, wire
what is kept     streams, keeping, writing, reading, artifacts, registry
what is heard    pull, handing, listening, watching, micro, hops
in memory        memory, memory_broker, memory_streams, memory_consumers, memory_listening, memory_registry
beside them      checks, clock, embedded
"""
