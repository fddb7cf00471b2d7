"""The HTTP server of the dashboard and the gateway, with checks of connections and host names, streams and downloads.

Read in this order: server, connections, hosts, sse, downloads, statuses
"""
