"""The bus on NATS JetStream. `client` is the one module that imports `nats`.

The session     bus, client, connection, request_reply, protocol, refusals
Logging in      login, credentials, tls
Streams         provisioning, stream_config, publisher, reader, reader_names, registry, key_value
Subscriptions   pull_consumer, pull_request, push_consumer, follower, forwarding, subscriptions, micro, message_tracing
"""
