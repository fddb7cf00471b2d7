"""The bus: streams, consumers and a registry behind one port.

Folders         jetstream, memory
Shared modules  validation, claim_check, file_store, observer, stream_names
For development embedded_server
"""
