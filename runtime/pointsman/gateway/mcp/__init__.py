"""Teams as tools of the Model Context Protocol, over HTTP and over standard input and output.

Server             backend, server
Tools              tools, calls, elicitation
Tasks extension    tasks, status_messages
Resources          resources
Streamable HTTP    endpoint

Only `endpoint` needs the extra `gateway`. The other modules need the extra `mcp`.
"""
