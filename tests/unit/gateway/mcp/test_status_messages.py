"""A server follows only the tasks that clients ask for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, cast

import pytest
from support.waiting import until

from pointsman.client.workflow import Workflow
from pointsman.errors import PeerError
from pointsman.gateway.mcp import status_messages
from pointsman.gateway.mcp.backend import Backend, StreamItem
from pointsman.gateway.mcp.status_messages import StatusMessages
from pointsman_schemas.events import Delta


class Named:
    """A workflow with only the id, because the server uses nothing else."""

    def __init__(self, id: str) -> None:
        self.id = id


class Following:
    """Calls of a caller whose workflows write one text and then wait."""

    def __init__(self) -> None:
        self.open: list[str] = []
        self.fails = False

    async def find(self, workflow: str) -> Workflow:
        return cast("Workflow", Named(workflow))

    async def follow(self, workflow: Any) -> AsyncGenerator[StreamItem, None]:
        self.open.append(workflow.id)
        try:
            if self.fails:
                raise PeerError("no broker")
            yield None
            yield Delta(workflow_id=workflow.id, task_id="t", attempt=1, agent="writer", text="The sky", offset=0)
            await asyncio.Event().wait()
        finally:
            self.open.remove(workflow.id)


async def text_of(messages: StatusMessages, id: str, backend: Following) -> str:
    async def found() -> str | None:
        newest = await messages.newest(id, cast("Backend", backend))
        return newest.text if newest else None

    return str(await until(found))


async def test_a_task_is_followed_while_clients_ask_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_messages, "_IDLE_S", 0.05)
    messages, backend = StatusMessages(), Following()

    text = await text_of(messages, "wf_1", backend)
    await until(lambda: not backend.open)
    again = await text_of(messages, "wf_1", backend)
    await until(lambda: not backend.open)

    assert text == again == "writer: The sky"


async def test_a_server_follows_a_bounded_number_of_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_messages, "_MAX_FOLLOWED", 1)
    messages, backend = StatusMessages(), Following()
    await text_of(messages, "wf_1", backend)

    further = await messages.newest("wf_2", cast("Backend", backend))

    assert further is None
    assert backend.open == ["wf_1"]


async def test_a_task_whose_broker_is_unavailable_is_followed_again_later() -> None:
    messages, backend = StatusMessages(), Following()
    backend.fails = True
    none = await messages.newest("wf_1", cast("Backend", backend))
    await until(lambda: not backend.open)
    backend.fails = False

    text = await text_of(messages, "wf_1", backend)

    assert none is None
    assert text == "writer: The sky"
