"""A model's streamed text reaches readers once and in order, even if their connection breaks in the middle."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

from support import factory
from support.proxy import Proxy
from support.waiting import until

from pointsman.authoring.agent import agent
from pointsman.authoring.context import Context
from pointsman.client.client import connect
from pointsman.settings import Settings
from pointsman_schemas.events import Delta
from pointsman_schemas.team import Pipeline, Stage, Team

TEAM = Team(name="crew", strategy=Pipeline(stages=(Stage(agent="a"),)))
WORDS = [f"word{number} " for number in range(60)]


async def test_reader_whose_connection_breaks_gets_each_piece_once_and_the_stored_answer(settings: Settings) -> None:
    begun, cut, written, healed = (asyncio.Event() for _ in range(4))

    @agent(name="a", description="Writes")
    async def write(request: str, context: Context) -> str:
        for number, word in enumerate(WORDS):
            context.stream_text(word)
            await asyncio.sleep(0.02)
            if number == 20:
                begun.set()
                await cut.wait()
            if number == 40:
                written.set()
                await healed.wait()
        return "".join(WORDS)

    got: list[Delta] = []

    async def receive(piece: Delta) -> None:
        got.append(piece)

    address = urlsplit(settings.url)
    assert address.hostname is not None
    assert address.port is not None
    async with (
        factory.team(TEAM, [write], on=settings) as caller,
        Proxy(address.hostname, address.port) as proxy,
        connect(settings=settings.model_copy(update={"url": proxy.url})) as reader,
    ):
        workflow = await caller.submit("crew", "write")
        followed = await reader.workflow(workflow.id, "crew")
        async with await followed.stream_text(receive):
            await begun.wait()
            await until(lambda: bool(got))
            proxy.cut()
            await until(lambda: not reader.bus.connected)
            cut.set()
            await written.wait()
            missed = len("".join(WORDS[:40])) - sum(len(piece.text) for piece in got)
            proxy.heal()
            await until(lambda: reader.bus.connected)
            await reader.list("crew")  # an answer on the new connection comes after its subscription
            healed.set()
            outcome = await followed.outcome(30)
            await until(lambda: "".join(piece.text for piece in got) == outcome.answer)

    assert missed > 0
    assert [piece.offset for piece in got] == [sum(len(each.text) for each in got[:n]) for n in range(len(got))]
