"""A supervisor processes a workflow with a limited number of function calls. Every machine counts the same number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support import factory
from support.calls import counting
from support.factory import echo, planner_of, synthesizer

import pointsman_schemas
from pointsman import core, engine
from pointsman.client.client import Client

_TASKS: list[dict[str, Any]] = [
    {"id": "t1", "agent": "a", "intent": "Do nothing for t1"},
    {"id": "t2", "agent": "a", "intent": "Do nothing for t2"},
    {"id": "t3", "agent": "b", "intent": "Do nothing for t3"},
    {"id": "join", "agent": "b", "intent": "Do nothing for join", "depends_on": ["t1", "t2", "t3"]},
]
_PLACES = tuple(
    str(Path(each))
    for each in (
        *core.__path__,
        *pointsman_schemas.__path__,
        *(f"{place}/{part}" for place in engine.__path__ for part in ("supervisor", "log")),
    )
)
_WARM_UP, _COUNTED = 3, 5  # workflows
_MOST = 4_820
"""Limit of function calls in a workflow. Measured: 4,787."""


async def test_workflow_takes_few_calls_in_core_schemas_and_supervisor() -> None:
    agents = [planner_of(*_TASKS), echo("a"), echo("b"), synthesizer]
    async with factory.team(agents=agents) as client:
        await _play(client, _WARM_UP)

        with counting(_PLACES) as counted:
            await _play(client, _COUNTED)

    assert counted[0] / _COUNTED < _MOST


async def _play(client: Client, count: int) -> None:
    """Run workflows one after another, because concurrent inputs would be batched differently each time."""
    for _ in range(count):
        workflow = await client.submit("crew", "hello")
        assert (await workflow.outcome(20)).status == "completed"
