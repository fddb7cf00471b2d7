"""The bus: streams, consumers and a registry behind one port.

The folders     jetstream, memory
Both use        validation, claim_check, file_store, observer, stream_names
For development embedded_server
"""
