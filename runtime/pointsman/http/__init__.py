"""The HTTP server that the dashboard and the gateway share: sockets, bounds of connections, names of hosts, streams.

Read in this order: server, connections, hosts, sse
"""
