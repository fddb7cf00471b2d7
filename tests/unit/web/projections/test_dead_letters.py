"""The dashboard lists any number of dead letters, newest first. Actions apply to one letter or to all letters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from support.asgi import event_stream, request
from support.history import TEAM, WORKFLOW, at, completed, store
from support.waiting import until

from pointsman.bus.memory.bus import MemoryBus
from pointsman.client.client import Client
from pointsman.engine.operations.dead_letters import DeadLetters
from pointsman.settings import Settings
from pointsman.web.dashboard import Dashboard
from pointsman.web.projections.dead_letters import LetterIndex
from pointsman_schemas.envelope import Envelope, encode
from pointsman_schemas.events import AttemptError, DeadLetter
from pointsman_schemas.strict_json import dump


@asynccontextmanager
async def watching(bus: MemoryBus, *, letters: int) -> AsyncIterator[Dashboard]:
    """Return a dashboard that has read `count` letters."""
    dashboard = await Dashboard.open(Client(bus), Settings())
    folding = asyncio.create_task(dashboard.run_projections())

    async def seen() -> bool:
        return len(dashboard.letters) == letters

    try:
        await until(seen)
        yield dashboard
    finally:
        folding.cancel()


async def bury(bus: MemoryBus, *names: str, origin: str = TEAM, message: str = "no reason") -> None:
    for name in names:
        letter = DeadLetter(
            id=name, origin=origin, workflow_id=WORKFLOW, cause=AttemptError(kind="undecodable", message=message),
            attempts=1, subject=f"pointsman.control.{TEAM}.{WORKFLOW}.cancel.ada.c", body="e30=", at=at(0),
        )  # fmt: skip
        envelope = Envelope(id=name, type=letter.event_type, source="test", time=at(0))
        await bus.publish(f"pointsman.dead.{origin}.{WORKFLOW}.{name}", dump(letter), encode(envelope))


async def test_newest_letters_are_first_and_the_rest_are_on_further_pages() -> None:
    bus = MemoryBus()
    await bury(bus, *(f"d{number}" for number in range(250)))
    async with watching(bus, letters=250) as dashboard:
        async with event_stream(dashboard.app, "/api/live/dead-letters") as page:
            first = (await page.until("letters")).data
        async with event_stream(dashboard.app, "/api/live/dead-letters?offset=200") as page:
            last = (await page.until("letters")).data

    assert [letter["id"] for letter in first["letters"]] == [f"d{number}" for number in range(249, 149, -1)]
    assert [letter["id"] for letter in last["letters"]] == [f"d{number}" for number in range(49, -1, -1)]
    assert (first["count"], last["count"], first["live"]["letters"]) == (250, 250, 250)


@pytest.mark.parametrize(
    ("text", "found"), [("BOLTS", ["d2"]), ("billing", ["d3"]), ("d1", ["d1"]), (WORKFLOW, ["d3", "d2", "d1"])]
)
async def test_a_search_covers_all_dead_letters(text: str, found: list[str]) -> None:
    bus = MemoryBus()
    await bury(bus, "d1")
    await bury(bus, "d2", message="out of bolts")
    await bury(bus, "d3", origin="billing")
    async with (
        watching(bus, letters=3) as dashboard,
        event_stream(dashboard.app, f"/api/live/dead-letters?text={text}") as page,
    ):
        told = (await page.until("letters")).data

    assert [letter["id"] for letter in told["letters"]] == found
    assert (told["count"], told["live"]["letters"]) == (len(found), 3)


async def test_a_letter_that_comes_or_goes_changes_the_page() -> None:
    bus = MemoryBus()
    await bury(bus, "d1")
    store = DeadLetters(bus, Client(bus).subjects)
    async with watching(bus, letters=1) as dashboard, event_stream(dashboard.app, "/api/live/dead-letters") as page:
        shown = [await page.until("letters")]
        await bury(bus, "d2")
        shown.append(await page.until("letters"))
        await store.discard(await store.get("d1"))
        shown.append(await page.until("letters"))

    assert [[letter["id"] for letter in told.data["letters"]] for told in shown] == [["d1"], ["d2", "d1"], ["d2"]]


async def test_discard_of_all_matches_excludes_later_arrivals() -> None:
    bus = MemoryBus()
    await bury(bus, *(f"d{number}" for number in range(40)), message="out of bolts")
    await bury(bus, "other")
    async with watching(bus, letters=41) as dashboard:
        until_seen = dashboard.letters.sequence
        await bury(bus, "late", message="out of bolts")
        chosen = {"text": "Bolts", "until": until_seen}
        done = await request(dashboard.app, "POST", "/api/dead-letters/discard", chosen)
    left = await DeadLetters(bus, Client(bus).subjects).list()

    assert done.json == {"done": 40, "of": 40}
    assert [letter.content.id for letter in left] == ["other", "late"]


async def test_replay_of_all_keeps_letters_of_ended_workflows() -> None:
    bus = MemoryBus()
    await store(bus, *completed())
    await bury(bus, "d1", "d2")
    async with watching(bus, letters=2) as dashboard:
        done = await request(dashboard.app, "POST", "/api/dead-letters/replay", {"until": dashboard.letters.sequence})

    assert done.json == {"done": 0, "of": 2}
    assert len(await DeadLetters(bus, Client(bus).subjects).list()) == 2


async def test_an_action_on_all_letters_needs_an_upper_bound() -> None:
    bus = MemoryBus()
    await bury(bus, "d1")
    async with watching(bus, letters=1) as dashboard:
        answer = await request(dashboard.app, "POST", "/api/dead-letters/discard", {"text": ""})

    assert answer.status == 422
    assert len(await DeadLetters(bus, Client(bus).subjects).list()) == 1


async def test_expired_letter_disappears() -> None:
    bus = MemoryBus()
    await bury(bus, "d1", "d2", "d3")
    async with watching(bus, letters=3) as dashboard:
        for sequence in (1, 2):
            await bus.delete("dead", sequence)
        await dashboard.letters.drop_aged()
        some = [row.id for row in dashboard.letters.matching("")]
        await bus.delete("dead", 3)
        await dashboard.letters.drop_aged()

        assert some == ["d3"]
        assert len(dashboard.letters) == 0


async def test_letter_missing_on_request_leaves_the_list() -> None:
    bus = MemoryBus()
    await bury(bus, "d1", "d2")
    async with watching(bus, letters=2) as dashboard:
        await bus.delete("dead", 2)
        answer = await request(dashboard.app, "GET", "/api/dead-letters/d2")

        assert answer.status == 404
        assert [row.id for row in dashboard.letters.matching("")] == ["d1"]


async def test_the_list_is_bounded_and_forgets_the_oldest() -> None:
    bus = MemoryBus()
    await bury(bus, "d1", "d2", "d3")
    index = LetterIndex(bus, Client(bus).subjects, kept=2)
    folding = asyncio.create_task(index.run())

    async def folded() -> bool:
        return index.sequence == 3

    await until(folded)
    folding.cancel()

    assert [row.id for row in index.matching("")] == ["d2", "d3"]
