"""The HTTP server that the dashboard and the gateway share: connections, their bounds, hosts, streams, downloads.

Read in this order: server, connections, hosts, sse, downloads, statuses
"""
