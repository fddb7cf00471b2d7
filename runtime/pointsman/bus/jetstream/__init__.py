"""The bus on NATS JetStream. Only `client` imports `nats`.

Connection      bus, client, connection, request_reply, protocol, refusals
Login           login, credentials, tls
Streams         provisioning, stream_config, publisher, reader, reader_names, registry, key_value
Subscriptions   pull_consumer, pull_request, push_consumer, follower, forwarding, subscriptions, micro, message_tracing
"""
