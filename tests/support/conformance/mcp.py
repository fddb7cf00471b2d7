"""Run the official conformance suite of MCP against a gateway with the teams of `support.mcp_teams`.

The suite runs all scenarios that the version 2026-07-28 requires of servers, and those of the Tasks extension.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from pointsman.gateway.mcp import calls, tasks
from pointsman.settings import Settings
from support import factory, mcp_teams
from support.conformance.npm import end_process
from support.gateway import served_gateway
from support.mcp_teams import AGENTS, SUITE_TEAMS

__all__ = ["EXPECTED", "SCENARIOS", "run"]

_VERSION = "2026-07-28"
_SCENARIO_TIMEOUT_MS = "120000"  # the longest scenario waits for 20 s; the default of the suite is 30 s
_TIMEOUT_S = 420.0  # 30 on a machine at rest, 100 beside the tests

SCENARIOS: Final = 50
"""The number of scenarios. If the suite runs fewer, it has stopped early."""

_NO_PROMPTS = "a gateway has no prompts and no completions"
_FILES = "the answer of a team is text or fields; its files are links to resources"
_FIXED = "the resources are workflows and their files, and not those of the suite's own server"
_ELICITATION = "a team asks by elicitation alone, and never for sampling, roots or other capabilities of a client"
_KEYS = "the keys of input requests are ids of questions, which the suite does not choose"
_HEADERS = "no team declares headers for its arguments; the suite does not count this scenario"

EXPECTED: Final[Mapping[str, str]] = {
    "sep-2549-prompts-list-caching-hints": _NO_PROMPTS,
    "completion-complete": _NO_PROMPTS,
    "prompts-list": _NO_PROMPTS,
    "prompts-get-simple": _NO_PROMPTS,
    "prompts-get-with-args": _NO_PROMPTS,
    "prompts-get-embedded-resource": _NO_PROMPTS,
    "prompts-get-with-image": _NO_PROMPTS,
    "sep-2322-non-tool-incomplete": _NO_PROMPTS,
    "tools-call-image": _FILES,
    "tools-call-audio": _FILES,
    "tools-call-embedded-resource": _FILES,
    "tools-call-mixed-content": _FILES,
    "resources-read-text": _FIXED,
    "resources-read-binary": _FIXED,
    "resources-templates-read": _FIXED,
    "sep-2575-server-rejects-undeclared-capability": _ELICITATION,
    "sep-2575-missing-capability-http-400": _ELICITATION,
    "sep-2322-sampling-incomplete": _ELICITATION,
    "sep-2322-list-roots-incomplete": _ELICITATION,
    "sep-2322-multiple-inputs-incomplete": _ELICITATION,
    "sep-2322-respect-client-capabilities": _ELICITATION,
    "sep-2322-elicitation-incomplete": _KEYS,
    "sep-2322-multi-round-r2": "the state of a request is the id of its workflow, in each round",
    "sep-2663-tasks-get-status-failed": "a failed workflow is a completed task with an error of the tool, and a "
    "workflow that is not stored is an error of the protocol",
    "sep-2663-server-returns-missing-capability-when-required": "no team demands tasks: a client without tasks waits",
    "sep-2663-mrtr-synchronous-before-task-creation": "the questions of a team belong to its task, and come after the "
    "task is created",
    "json-schema-2020-12-tool-found": "no team has the schema of the suite; the suite does not count this scenario",
    "sep-2243-server-no-xmcp-tool": _HEADERS,
    "sep-2243-server-decode-base64": _HEADERS,
    "sep-2243-server-validate-param-match": _HEADERS,
    "sep-2243-server-reject-invalid-param-chars": _HEADERS,
    "sep-2243-server-reject-param-mismatch": _HEADERS,
}
"""The checks that fail, each with its reason."""

_UNCOUNTED: Final = frozenset(
    ("sep-2575-http-server-no-independent-requests-on-stream", "sep-2575-server-no-log-without-loglevel")
)
"""Checks that pass only on an idle machine, because the suite allows half a second for a whole workflow."""

_LATE: Final[Mapping[str, str]] = {
    "sep-2575-server-sends-subscription-ack": "Failed to open or receive frames",
    "sep-2575-server-tags-subscription-id": "Failed to open stream line",
    "sep-2575-server-honors-notification-filter": "Strict subscription filtering line failed",
}
"""Checks of an answer that the suite awaits for 0.8 s or 1.5 s, and their message if no answer has come by then. On a
busy machine, an answer takes longer."""


class Check(NamedTuple):
    """The result of a check."""

    scenario: str
    id: str
    status: str
    message: str


def problems_of(checks: Iterable[Check]) -> list[str]:
    """Return the differences between the results and the expected ones.

    Args:
        checks: The results of all checks.
    """
    failed = {
        check.id: check
        for check in checks
        if check.status == "FAILURE" and check.id not in _UNCOUNTED and not _is_late(check)
    }
    return [
        *(f"{id} of {check.scenario} failed: {check.message}" for id, check in failed.items() if id not in EXPECTED),
        *(f"{id} did not fail; remove it from the expected failures" for id in EXPECTED if id not in failed),
    ]


def _is_late(check: Check) -> bool:
    return check.id in _LATE and check.message.startswith(_LATE[check.id])


def _read(folder: Path) -> tuple[int, list[Check]]:
    """Return the number of scenarios and the results of their checks."""
    files = sorted(folder.glob("*/checks.json"))
    return len(files), [
        Check(path.parent.name, each["id"], each["status"], each.get("errorMessage", ""))
        for path in files
        for each in json.loads(path.read_text())
    ]


async def run(settings: Settings, environment: Mapping[str, str]) -> bool:
    """Run the suite, and print its summary and the differences from the expected results.

    Args:
        settings: The settings of the broker.
        environment: The environment with the program of the suite.

    Returns:
        True if there are differences.
    """
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patched:
        patched.setattr(calls, "_RESTART_S", 0.0)  # no delay: the suite calls many tools that do not exist
        # The suite expects a task for slow work and no task for a greeting, which is slow on a busy machine.
        patched.setattr(tasks, "_IMMEDIATE_S", 4.0)
        patched.setattr(mcp_teams, "MIN_WORK_S", 4.5)
        async with factory.team(SUITE_TEAMS, AGENTS, on=settings, settled=True), served_gateway(settings) as address:
            process = await asyncio.create_subprocess_exec(
                "conformance", "server", "--url", f"{address}/mcp", "--requirements", _VERSION, "--output-dir", place,
                "--timeout", _SCENARIO_TIMEOUT_MS,
                env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            )  # fmt: skip
            try:
                async with asyncio.timeout(_TIMEOUT_S):
                    output = (await process.communicate())[0].decode()
            finally:
                await end_process(process)
        scenarios, checks = _read(Path(place))
    problems = problems_of(checks)
    if scenarios != SCENARIOS:
        problems.append(f"{scenarios} of {SCENARIOS} scenarios have run")
    if problems:
        sys.stdout.write(output)
    passed = sum(check.status == "SUCCESS" for check in checks)
    lines = [f"MCP: {scenarios} scenarios, {passed} checks passed, {len(EXPECTED)} failures are expected", *problems]
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return bool(problems)
