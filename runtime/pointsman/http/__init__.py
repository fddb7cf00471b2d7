"""The HTTP server of the dashboard and the gateway, with bounds of connections, hosts, streams and downloads.

Read in this order: server, connections, hosts, sse, downloads, statuses
"""
