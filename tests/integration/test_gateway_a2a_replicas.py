"""A client of A2A gets each event of a task once, although its gateway is killed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

import httpx
import pytest
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.client.client import Client, ClientCallContext
from a2a.client.errors import A2AClientError
from a2a.types import a2a_pb2 as pb
from google.protobuf.json_format import ParseDict
from google.protobuf.struct_pb2 import Value
from support import factory
from support.crew import planner, steps, team, worker
from support.gateway import gateway_process
from support.processes import System
from support.waiting import until

from pointsman import Context, agent
from pointsman.gateway.a2a.parts import metadata_of
from pointsman.settings import Settings
from pointsman_schemas.card import Role
from pointsman_schemas.role_io import Synthesis, SynthesizerInput

pytestmark = pytest.mark.timeout(180)


async def client_of(http: httpx.AsyncClient, address: str, version: str = "1.0") -> Client:
    card = await A2ACardResolver(http, f"{address}/a2a/crew").get_agent_card()
    chosen = [each for each in card.supported_interfaces if each.protocol_version == version]
    del card.supported_interfaces[:]
    card.supported_interfaces.extend(chosen)
    return ClientFactory(ClientConfig(httpx_client=http)).create(card)


def position_of(event: pb.StreamResponse) -> str:
    return str(metadata_of(getattr(event, str(event.WhichOneof("payload"))), "position") or "")


def log_events(events: Sequence[pb.StreamResponse]) -> list[tuple[str, str]]:
    """Return the events of the log with their positions. The artifact is the answer, which is streamed in pieces."""
    return [
        (position_of(event).partition("-")[0], event.status_update.status.SerializeToString(deterministic=True).hex())
        for event in events
        if event.HasField("status_update")
    ]


def text_of(events: Sequence[pb.StreamResponse], before: str = "") -> str:
    """Return the whole text of a client that received the text `before`, and then the events."""
    text = before
    for event in events:
        if event.HasField("artifact_update"):
            update = event.artifact_update
            piece = "".join(part.text for part in update.artifact.parts)
            text = text + piece if update.append else piece
    return text


async def test_a_client_that_subscribes_again_sees_each_event_once(settings: Settings, tmp_path: Path) -> None:
    """The gateway is killed while the synthesizer writes. Another gateway continues with the next character. A client
    of version 0.3 subscribes late and gets the whole text."""
    words, killed = [f"word{number} " for number in range(30)], asyncio.Event()

    @agent(name="synthesizer", description="Writes", role=Role.SYNTHESIZE)
    async def write(asked: SynthesizerInput, context: Context) -> Synthesis:
        for number, word in enumerate(words):
            context.stream_text(word)
            await asyncio.sleep(0.02)
            if number == 15:
                await killed.wait()
        return Synthesis(answer="".join(words) + "end")

    request = pb.SendMessageRequest(
        message=pb.Message(
            message_id=uuid4().hex, role=pb.Role.ROLE_USER, parts=[pb.Part(data=ParseDict(steps("a"), Value()))]
        )
    )
    seen: list[pb.StreamResponse] = []
    async with (
        factory.team(team, [planner, write, worker], on=settings),
        System(tmp_path / "system", settings, CREW_JOURNAL=str(tmp_path / "journal")) as system,
        httpx.AsyncClient(timeout=60, trust_env=False) as http,
    ):
        (first, one), (_, two) = await asyncio.gather(gateway_process(system), gateway_process(system))
        listening, other = await client_of(http, one), await client_of(http, two)
        old = await client_of(http, two, "0.3")

        async def listen() -> None:
            async for event in listening.send_message(request):
                seen.append(event)  # noqa: PERF401 - others look at the list meanwhile

        task = asyncio.create_task(listen())
        await until(lambda: "word15" in text_of(seen), seconds=60)
        await first.kill()
        with pytest.raises(A2AClientError):
            await task
        after = ClientCallContext(service_parameters={"Last-Event-ID": position_of(seen[-1])})
        subscription = pb.SubscribeToTaskRequest(id=seen[0].task.id)

        async def subscribe() -> list[pb.StreamResponse]:
            return [event async for event in other.subscribe(subscription, context=after)]

        resumed = asyncio.create_task(subscribe())
        fresh = aiter(old.subscribe(subscription))
        late = [await anext(fresh)]
        killed.set()
        rest = await resumed
        late += [event async for event in fresh]
        ended = await subscribe()
        every = [event async for event in other.send_message(request)]

    answer = "".join(words) + "end"
    pieces = [event.artifact_update for event in [*seen, *rest] if event.HasField("artifact_update")]
    assert [piece.append for piece in pieces] == [False] + [True] * (len(pieces) - 1)
    assert [piece.last_chunk for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert len({piece.artifact.artifact_id for piece in pieces}) == 1
    assert "".join(piece.artifact.parts[0].text for piece in pieces) == answer
    assert text_of(ended, text_of(seen)) == text_of(late) == text_of(every) == answer
    assert sum(event.HasField("artifact_update") for event in ended) == 1

    assert position_of(rest[0]) == position_of(seen[-1]).partition("-")[0]
    assert rest[0].task.status.state == pb.TaskState.TASK_STATE_WORKING
    assert log_events([*seen[1:], *rest[1:]]) == log_events([*seen[1:], *ended[1:]]) == log_events(every[1:])
    assert every[-1].status_update.status.state == pb.TaskState.TASK_STATE_COMPLETED
