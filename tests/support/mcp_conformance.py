"""Run the official conformance suite of MCP against a gateway with the teams of `support.mcp_teams`.

The command needs `conformance`, the program of the npm package `@modelcontextprotocol/conformance`. Run it with
`make conformance-mcp`, which installs the program.
"""

from __future__ import annotations

import asyncio
import re
import sys

from pointsman.bus.embedded_server import EmbeddedBroker
from pointsman.settings import Settings
from support import factory
from support.gateway import served_gateway
from support.mcp_teams import AGENTS, TEAMS

__all__ = ["EXPECTED", "SCENARIOS"]

SCENARIOS = (
    "server-stateless",
    "tools-list",
    "tools-call-simple-text",
    "tools-call-error",
    "tools-call-with-progress",
    "server-sse-multiple-streams",
    "resources-list",
    "sep-2164-resource-not-found",
    "dns-rebinding-protection",
    "caching",
    "http-header-validation",
    "input-required-result-missing-input-response",
    "input-required-result-result-type",
    "input-required-result-unsupported-methods",
    "input-required-result-validate-input",
    "tasks-lifecycle",
    "tasks-capability-negotiation",
    "tasks-wire-fields",
    "tasks-request-state-removal",
    "tasks-mrtr-input",
    "tasks-request-headers",
    "tasks-dispatch-and-envelope",
    "tasks-required-task-error",
    "tasks-mrtr-composition",
)
"""The scenarios that apply to teams. Others call tools that return images or sounds, prompts and sampling."""

EXPECTED = {
    "server-stateless": 4,  # these checks call diagnostic tools of the suite, and tools are teams here
    "caching": 1,  # the scenario lists prompts, and a gateway has none
    "tasks-lifecycle": 1,  # a failed workflow is a tool's error, and no stored workflow is an error of the protocol
    "tasks-required-task-error": 1,  # no team demands tasks: a client without tasks waits
    "tasks-mrtr-composition": 1,  # the questions of a team belong to its task, and come after the task is created
}
"""Numbers of checks that fail, with the reason for each scenario."""

_RESULT = re.compile(r"Passed: ([0-9]+)/([0-9]+), ([0-9]+) failed")
_TIMEOUT_S = 90.0


async def _run(address: str, scenario: str) -> tuple[int, str]:
    """Return the number of failed checks and the output."""
    process = await asyncio.create_subprocess_exec(
        "conformance", "server", "--url", f"{address}/mcp", "--scenario", scenario, "--spec-version", "2026-07-28",
        "--force", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    async with asyncio.timeout(_TIMEOUT_S):
        output = (await process.communicate())[0].decode()
    found = _RESULT.search(output)
    return (int(found[3]) if found else -1), output


async def main() -> int:
    """Run the scenarios and print the result of each.

    Returns:
        The number of scenarios with another result than the expected one.
    """
    wrong = 0
    broker = EmbeddedBroker()
    await broker.start()
    settings = Settings(url=broker.url, namespace="conformance", heartbeat=0.5)
    try:
        async with factory.team(TEAMS, AGENTS, on=settings, settled=True), served_gateway(settings) as address:
            for scenario in SCENARIOS:
                failed, output = await _run(address, scenario)
                expected = EXPECTED.get(scenario, 0)
                sys.stdout.write(f"{scenario}: {failed} failed, {expected} expected\n")
                if failed != expected:
                    wrong += 1
                    sys.stdout.write(output)
    finally:
        await broker.stop()
    return wrong


if __name__ == "__main__":
    sys.exit(1 if asyncio.run(main()) else 0)
