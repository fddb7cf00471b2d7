"""Agents of one name share its tasks, so a worker warns of different input or output schemas."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import structlog
from structlog.testing import capture_logs
from support import factory
from support.handoffs import SupervisorDouble
from support.waiting import until

from pointsman.authoring.agent import Agent, agent
from pointsman.bus.memory.bus import MemoryBus
from pointsman.engine.worker import engine as module
from pointsman_schemas.card import AgentCard


def said(text: str) -> str:
    return text


def counted(text: str) -> int:
    return len(text)


@pytest.mark.parametrize(("second", "told"), [(said, 0), (counted, 1)])
async def test_worker_warns_of_a_live_agent_with_the_same_name_and_another_schema(
    monkeypatch: pytest.MonkeyPatch, second: object, told: int
) -> None:
    level = structlog.make_filtering_bound_logger("info")
    monkeypatch.setattr(module, "_log", structlog.wrap_logger(None, wrapper_class=level))
    desk = SupervisorDouble(MemoryBus())
    first: Agent = agent(name="invoice", description="d", version="1.0.0")(said)
    other: Agent = agent(name="invoice", description="d", version="2.0.0")(second)  # type: ignore[arg-type]

    async def announced() -> Sequence[AgentCard]:
        return await desk.bus.registry.cards()

    async with factory.running(factory.worker(desk.bus, first)) as _:
        [card] = await until(announced)
        with capture_logs() as lines:
            async with factory.running(factory.worker(desk.bus, other)):
                pass

    warned = [line for line in lines if line["event"] == "agent_differs"]
    assert [(line["version"], line["others"]) for line in warned] == [
        (other.card.revision, [f"{card.instance} {first.card.revision}"])
    ] * told
