"""A trace on a terminal grows with its workflow. It is removed when the workflow ends."""

from __future__ import annotations

import asyncio
import io
import re

import pytest
from rich.console import Console
from support import factory
from support.factory import echo, planner_of, synthesizer
from support.history import WORKFLOW, dispatched, ended, planned, started, store, succeeded, tool
from support.waiting import until

from pointsman.authoring.agent import Agent, agent
from pointsman.bus.memory.bus import MemoryBus
from pointsman.cli.commands import trace
from pointsman.cli.render.follow import follow
from pointsman.cli.render.live_trace import LiveTrace
from pointsman.cli.render.tree import tree_height
from pointsman.cli.render.viewport import fit_to_lines
from pointsman.client.client import Client
from pointsman.core.views.trace import TraceNode, build_trace
from pointsman.errors import BusUnavailableError
from pointsman.testing import running_team
from pointsman_schemas.plan import PlannedTask
from pointsman_schemas.team import Limits, Pipeline, Stage, Team

TEAM = Team(name="crew", limits=Limits(deadline=30))


class Screen:
    """A terminal and its text."""

    def __init__(self) -> None:
        self.console = Console(file=io.StringIO(), force_terminal=True, width=140, height=40, color_system=None)

    @property
    def text(self) -> str:
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.console.file.getvalue())  # type: ignore[attr-defined]

    async def shows(self, *parts: str) -> bool:
        return all(part in self.text for part in parts)


async def test_growing_tree_is_drawn_again() -> None:
    release, screen = asyncio.Event(), Screen()
    plan = [{"id": "t1", "agent": "a", "intent": "help"}, {"id": "t2", "agent": "slow", "intent": "wait"}]

    async with factory.team(TEAM, [planner_of(*plan), synthesizer, echo("a"), slow(release)], settled=True) as client:
        workflow = await client.submit("crew", "help")
        drawing = asyncio.ensure_future(trace._draw_live_trace(client, workflow, screen.console))

        await until(lambda: screen.shows("\u2713 invoke_agent a", "\u2026 invoke_agent slow"))
        assert not drawing.done()
        release.set()
        await asyncio.wait_for(drawing, 20)


async def test_tree_is_drawn_after_an_outage_of_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    client, screen = Client(MemoryBus()), Screen()
    there, alive = [False, True], client.operations.live_names

    async def sometimes() -> frozenset[str]:
        if not there.pop(0):
            raise BusUnavailableError("it is away")
        there.append(True)
        return await alive()

    monkeypatch.setattr(client.operations, "live_names", sometimes)
    await store(client.bus, started(), dispatched("t1", "fitter", 1))
    drawing = asyncio.ensure_future(
        trace._draw_live_trace(client, factory.workflow_of(client, WORKFLOW), screen.console)
    )

    await until(lambda: screen.shows("invoke_agent fitter"))

    await store(client.bus, ended("cancelled", 3), number=2)
    await asyncio.wait_for(drawing, 20)


@pytest.mark.parametrize("json", [False, True])
async def test_watch_prints_events_as_they_happen(capsys: pytest.CaptureFixture[str], json: bool) -> None:
    release, said = asyncio.Event(), ""
    plan = [{"id": "t1", "agent": "a", "intent": "help"}, {"id": "t2", "agent": "slow", "intent": "wait"}]

    async def told() -> bool:
        nonlocal said
        said += capsys.readouterr().out
        return said.count('"task_succeeded"') == 2 if json else "✓ a " in said  # first the planner, then `a`

    async with factory.team(TEAM, [planner_of(*plan), synthesizer, echo("a"), slow(release)], settled=True) as client:
        watching = asyncio.ensure_future(follow(await client.submit("crew", "help"), json=json))
        await until(told)
        assert not watching.done()
        release.set()
        outcome = await asyncio.wait_for(watching, 20)

    assert outcome.status == "completed"


async def test_tasks_of_a_nested_team_appear_in_the_tree_as_they_run() -> None:
    release, screen = asyncio.Event(), Screen()
    desk = Team(name="desk", agents=("crew",), strategy=Pipeline(stages=(Stage(agent="crew"),)))
    crew = Team(name="crew", strategy=Pipeline(stages=(Stage(agent="a"), Stage(agent="slow"))))

    async with running_team([desk, crew], [echo("a"), slow(release)]) as client:
        workflow = await client.submit("desk", "help")
        drawing = asyncio.ensure_future(trace._draw_live_trace(client, workflow, screen.console))

        await until(
            lambda: screen.shows("\u2026 invoke_workflow crew", "\u2713 invoke_agent a", "\u2026 invoke_agent slow")
        )
        assert not drawing.done()
        release.set()
        await asyncio.wait_for(drawing, 20)


async def test_task_with_a_dead_agent_is_drawn_as_waiting() -> None:
    client, screen = Client(MemoryBus()), Screen()
    await store(client.bus, started(), dispatched("t1", "fitter", 1))
    workflow = factory.workflow_of(client, WORKFLOW)
    drawing = asyncio.ensure_future(trace._draw_live_trace(client, workflow, screen.console))

    await until(lambda: screen.shows("\u00b7 invoke_agent fitter", "waiting for an agent named fitter"))

    await store(client.bus, ended("cancelled", 3), number=2)
    await asyncio.wait_for(drawing, 20)


async def test_tasks_waiting_for_agents_share_a_line_if_space_is_short() -> None:
    client, screen = Client(MemoryBus()), Screen()
    handed = [dispatched(f"t{n}", "fitter", 1) for n in range(50)]
    await store(client.bus, started(), *handed)
    workflow = factory.workflow_of(client, WORKFLOW)
    drawing = asyncio.ensure_future(trace._draw_live_trace(client, workflow, screen.console))

    await until(lambda: screen.shows("50 tasks waiting for an agent"))

    await store(client.bus, ended("cancelled", 3), number=2)
    await asyncio.wait_for(drawing, 20)
    assert "None" not in screen.text


def test_tall_tree_drops_finished_tasks_and_keeps_running_ones() -> None:
    plan = [PlannedTask(id=f"t{n}", agent="fitter", intent="fit") for n in range(60)]
    log = [started(), *planned(*plan)]
    log += [dispatched(f"t{n}", "fitter", 1) for n in range(40)]
    log += [succeeded(f"t{n}", "fitter", 2, 3) for n in range(37)]
    root = build_trace(log, [tool("drill", 2, 3, task="t0"), tool("begun", 2, 2, task="t37", kind="progress")])

    assert fit_to_lines(root, 100) == root
    assert "drill" not in names(fit_to_lines(root, tree_height(root) - 1))
    small = fit_to_lines(root, 24)
    assert tree_height(small) <= 24
    assert names(small)[2:] == ["38 tasks done", "invoke_agent fitter", "2 tasks handed over", "20 tasks waiting"]
    assert small.usage == root.usage


def names(node: TraceNode) -> list[str]:
    below = node.children[0].children if node.kind == "task" and len(node.children) == 1 else node.children
    return [node.name, *(name for child in below for name in names(child))]


async def test_nested_team_that_never_starts_does_not_delay_the_end() -> None:
    handed = dispatched("t1", "desk", 1).model_copy(update={"team": True})
    client = Client(MemoryBus())
    await store(client.bus, started(), handed, ended("cancelled", 3))
    growing = LiveTrace(client, factory.workflow_of(client, WORKFLOW))

    await asyncio.wait_for(growing.follow(), 20)

    root = growing.trace()
    assert root is not None
    assert root.status == "cancelled"


def slow(release: asyncio.Event) -> Agent:
    @agent(name="slow", description="Waits until it may")
    async def wait(request: str) -> str:
        await release.wait()
        return request

    return wait
