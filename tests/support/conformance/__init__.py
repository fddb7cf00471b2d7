"""Run the official conformance suites of MCP and AG-UI, which are npm packages, against a gateway.

`make conformance` runs both suites; `make conformance-mcp` and `make conformance-agui` run one.
"""
