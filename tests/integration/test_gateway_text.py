"""Pieces of text in the gateway's events have correct offsets, also after a reconnect with `Last-Event-ID`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import httpx2
import pytest
from support import factory
from support.gateway import ServerEvent, http_client, read_events, served_gateway

from pointsman.authoring.agent import agent
from pointsman.authoring.context import Context
from pointsman.engine.worker import progress_publisher
from pointsman.errors import TaskError
from pointsman.settings import Settings
from pointsman_schemas.team import Pipeline, RetryPolicy, Stage, Team

pytestmark = pytest.mark.timeout(120)

TEAM = Team(name="crew", strategy=Pipeline(stages=(Stage(agent="a"),)), retry=RetryPolicy(backoff=0))
MOST_WORDS = 2_000


class Page:
    """A reader that inserts each piece at its offset, as docs/gateway.md describes it."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.text = ""
        self.begins: list[int] = []
        """The offset of the first piece of each stream."""
        self.newest = ""

    async def read(
        self, client: httpx2.AsyncClient, path: str, *, until: str = "", on_text: Callable[[], None] = lambda: None
    ) -> list[ServerEvent]:
        """Read a stream until it ends or the text contains `until`. Then disconnect."""
        events: list[ServerEvent] = []
        headers = {"last-event-id": self.newest} if self.newest else {}
        async with client.stream("GET", f"{path}/events", params={"live": True}, headers=headers) as response:
            async for event in read_events(response):
                if not any(each.type == "text" for each in events) and event.type == "text":
                    self.begins.append(event.data["offset"])
                events.append(event)
                self.newest = event.id or self.newest
                if event.type == "text":
                    self._put(event)
                    on_text()
                if until and until in self.text:
                    break
        return events

    def _put(self, event: ServerEvent) -> None:
        call, offset = event.data["call"], event.data["offset"]
        if call not in self.calls[-1:]:
            self.calls.append(call)
            self.text = ""
        assert offset <= len(self.text)  # no gap
        self.text = self.text[:offset] + event.data["text"]


async def test_text_has_its_place_after_a_retry_and_after_a_reconnect(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_publisher, "_REPEAT_INTERVAL_S", 0.1)
    enough = asyncio.Event()

    @agent(name="a", description="Writes until the last reader has a piece")
    async def write(request: str, context: Context) -> str:
        if context.attempt == 1:
            context.stream_text("a beginning of another text")
            await asyncio.sleep(0.2)  # until the text has been sent
            raise TaskError("again", retryable=True)
        words: list[str] = []
        while not enough.is_set() and len(words) < MOST_WORDS:
            words.append(f"word{len(words)} ")
            context.stream_text(words[-1])
            await asyncio.sleep(0.02)
        return "".join(words)

    page = Page()
    async with (
        factory.team(TEAM, [write], on=settings),
        served_gateway(settings) as address,
        http_client(address) as client,
    ):
        path = (await client.post("/v1/workflows", json={"team": "crew", "input": "write"})).headers["location"]
        parts = [await page.read(client, path, until="word5 ")]
        parts.append(await page.read(client, path, until=f"word{page.text.count(' ') + 10} "))
        parts.append(await page.read(client, path, on_text=enough.set))

    ids = [event.id for events in parts for event in events if event.id]
    assert parts[-1][-1].data["outcome"]["answer"] == page.text
    assert page.begins == [0, 0, 0]
    assert len(set(ids)) == len(ids)  # no entry of the log is repeated
    assert [event.data["attempt"] for events in parts for event in events if event.type == "text"][-1] == 2
