"""Official suites of protocols, run against a gateway: those of MCP and AG-UI, which are npm packages.

Run them with `make conformance`, or one of them with `make conformance-mcp` or `make conformance-agui`.
"""
