"""Send the data of each open page as server-sent events. First send all data, then the changes.

Every event has a field `live` with the common data of all pages. These are the state of the broker, the teams, and the
numbers of questions, dead letters and failing agents.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

from starlette.requests import Request

from pointsman.batches.service import Batches
from pointsman.client.client import Client
from pointsman.core.model.agent_health import open_circuits
from pointsman.errors import ContractError, PointsmanError
from pointsman.http.sse import KEEPALIVE_INTERVAL_S, format_event
from pointsman.index.rows import Search, WorkflowRow
from pointsman.index.workflows import WorkflowIndex
from pointsman.ports.bus import QueueDepth
from pointsman.telemetry import get_logger
from pointsman.util.signal import Signal
from pointsman.web import views
from pointsman.web.batch_actions import batch_json
from pointsman.web.conversation import Conversation
from pointsman.web.live_workflow import LiveWorkflow
from pointsman.web.projections.dead_letters import LetterIndex
from pointsman.web.projections.queued import queued_rows
from pointsman.web.projections.schedules import ScheduleIndex
from pointsman.web.projections.threads import ThreadIndex
from pointsman.web.responses import parse_number
from pointsman.web.sse import Chunks, Polled, batches

__all__ = ["EventStreams"]

_log = get_logger(__name__)

# seconds in which changes are gathered before they are sent; a person does not notice the delay
_BATCH_INTERVAL_S = 0.2
_POLL_INTERVAL_S = 2.0  # seconds between two polls of queues, cards and questions, while a page is open
_PAGE_SIZE = 100  # number of rows of a page
_MAX_CHANGED_ROWS = 200  # if more rows changed together, the whole page is sent again
_MINUTES = re.compile(r"[0-9]{1,7}")
_MAX_SEARCH_CHARS = 200  # largest number of characters of a search


class EventStreams:
    """The event streams of all pages, from the broker and from the projections."""

    def __init__(
        self,
        client: Client,
        index: WorkflowIndex,
        letters: LetterIndex,
        threads: ThreadIndex,
        schedules: ScheduleIndex,
        batches: Batches,
    ) -> None:
        self._client = client
        self._index = index
        self._letters = letters
        self._threads = threads
        self._schedules = schedules
        self._batches = batches
        self._agents: Polled[dict[str, list[dict[str, Any]]]] = Polled(self._read_agents, _POLL_INTERVAL_S)
        self._questions: Polled[list[dict[str, Any]]] = Polled(self._read_questions, _POLL_INTERVAL_S)
        self._queued: Polled[list[WorkflowRow]] = Polled(lambda: queued_rows(client), _POLL_INTERVAL_S)
        self.stopping = asyncio.Event()

    async def until_stopped(self, chunks: Chunks) -> AsyncIterator[bytes]:
        """Yield `chunks`, and between them the status of the namespace after each change, until the dashboard stops."""
        stopping = asyncio.ensure_future(self.stopping.wait())
        coming = asyncio.ensure_future(anext(chunks))
        sent: Mapping[str, Any] = {}
        try:
            async with self._agents.watch(), self._questions.watch():
                yield b"retry: 1000\n\n"
                while not stopping.done():
                    await asyncio.wait(
                        {coming, stopping}, timeout=_BATCH_INTERVAL_S * 2, return_when=asyncio.FIRST_COMPLETED
                    )
                    if coming.done():
                        try:
                            yield coming.result()
                        except StopAsyncIteration:
                            return
                        except PointsmanError as error:  # the browser reconnects, with the id of its last event
                            _log.info("stream_ended", error=str(error))
                            return
                        coming = asyncio.ensure_future(anext(chunks))
                    elif (status := await self.status()) != sent:
                        sent = status
                        yield format_event("status", status)
        finally:
            for waiting in (coming, stopping):
                waiting.cancel()
            await asyncio.gather(coming, stopping, return_exceptions=True)
            await chunks.aclose()

    async def workflows(self, request: Request) -> Chunks:
        """Yield the requested page of the list, and then its changes.

        A changed row has a field `fits`, which is true if the row still matches the search. The field `waiting` has the
        requests that match and that no supervisor has admitted yet. If one of them changes, all are sent again.

        Yields:
            Server-sent events.
        """
        async with self._queued.watch(), aclosing(self._rows(request)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def _rows(self, request: Request) -> Chunks:
        index, search, offset = self._index, _search(request), _offset(request)
        seen, epoch = _last_event_id(request), index.epoch
        # If the browser is new, or its last event is from a deleted stream, send the whole page.
        if not 0 < seen <= index.sequence:
            seen = -1
        sent: list[dict[str, object]] | None = None
        while True:
            looked = self._queued.value
            waiting = [row.as_json() for row in looked or () if index.find(row.id) is None and search.matches(row)]
            changes, until = index.changes, index.sequence
            changed = [] if seen < 0 else _limit_rows(index.changed_since(seen), _MAX_CHANGED_ROWS)
            if seen < 0 or changed is None or epoch != index.epoch:
                epoch = index.epoch
                page = index.page(search, offset=offset, limit=_PAGE_SIZE)
                page.totals.waiting = len(waiting)
                content: dict[str, Any] = {
                    "rows": [row.as_json() for row in page.rows],
                    "waiting": waiting,
                    "totals": page.totals,
                    "size": _PAGE_SIZE,
                }
                yield format_event("page", {**content, **await self.status()}, id=page.sequence)
            elif changed or waiting != sent:
                page = index.page(search, limit=0)
                page.totals.waiting = len(waiting)
                rows = {
                    "rows": [{**row.as_json(), "fits": search.matches(row)} for row in changed],
                    "totals": page.totals,
                }
                more = {"waiting": waiting} if waiting != sent else {}
                yield format_event("rows", {**rows, **more, **await self.status()}, id=page.sequence)
            else:
                yield format_event("status", await self.status())
            seen, sent = until, waiting  # rows that changed meanwhile, after `until`, are sent in the next turn
            await _wait_for_any(index.wait_for_change(changes), self._queued.wait_for_change(looked))
            await asyncio.sleep(_BATCH_INTERVAL_S)

    async def workflow(self, request: Request) -> Chunks:
        """Yield the lines and the state of one workflow.

        The state also changes without a message of the log, for example if an agent stops, and is then sent again.
        """
        name, seen = request.path_params["id"], _last_event_id(request)
        bus, subjects = self._client.bus, self._client.subjects
        if await bus.last("log", subjects.workflow_log(name)) is None:
            waits = await self._client.queued_request(name)
            queued = {"team": waits.team, "input": waits.input} if waits else {"team": None, "input": None}
            yield format_event("absent", {"id": name, **queued, **await self.status()})
        try:
            async with aclosing(LiveWorkflow(self._client, name).changes()) as changes:
                async for change in changes:
                    if new := [line for line in change.lines if line.order > seen]:
                        yield format_event("lines", new, id=max(line.order for line in change.lines))
                    if change.view:
                        letters = len(self._letters.matching(name.casefold()))
                        yield format_event("view", {**change.view, "letters": letters, **await self.status()})
                    else:
                        yield format_event("status", await self.status())
        except ContractError as error:
            yield format_event("broken", {"error": str(error)})

    async def agents(self, request: Request) -> Chunks:
        """Yield the current state of all agents."""
        async for chunk in self._polled("agents", self._agents):
            yield chunk

    async def questions(self, request: Request) -> Chunks:
        """Yield the current open questions."""
        async for chunk in self._polled("questions", self._questions):
            yield chunk

    async def dead_letters(self, request: Request) -> Chunks:
        """Yield the requested page of the letters, and again after each change.

        `until` is the sequence of the newest letter that the page counts.
        """
        letters, offset, text = self._letters, _offset(request), _text(request)

        def page() -> dict[str, Any]:
            rows, count = letters.page(text, offset=offset, limit=_PAGE_SIZE)
            return {"letters": [row.data for row in rows], "count": count, "until": letters.sequence}

        async for chunk in self._paged("letters", page, letters):
            yield chunk

    async def threads(self, request: Request) -> Chunks:
        """Yield the requested page of the threads, and again after each change."""
        threads, offset, text = self._threads, _offset(request), _text(request)

        def page() -> dict[str, Any]:
            rows, count = threads.page(text, offset=offset, limit=_PAGE_SIZE)
            return {"threads": [row.data for row in rows], "count": count}

        async for chunk in self._paged("threads", page, threads):
            yield chunk

    async def thread(self, request: Request) -> Chunks:
        """Yield the turns of one thread, and the work on running turns."""
        names = {name: request.path_params[name] for name in ("team", "caller", "thread")}
        async with aclosing(Conversation(self._client, self._questions, self.status, **names).chunks()) as chunks:
            async for chunk in chunks:
                yield chunk

    async def schedules(self, request: Request) -> Chunks:
        """Yield the requested page of the schedules, and again after each change."""
        schedules, offset, text = self._schedules, _offset(request), _text(request)

        def page() -> dict[str, Any]:
            rows, count = schedules.page(text, offset=offset, limit=_PAGE_SIZE)
            return {"schedules": rows, "count": count}

        async for chunk in self._paged("schedules", page, schedules):
            yield chunk

    async def batches(self, request: Request) -> Chunks:
        """Yield the newest batches, and again after each change of a batch or of its rows."""
        known = self._batches

        def page() -> dict[str, Any]:
            return {"batches": [batch_json(known, record) for record in known.listed()]}

        async for chunk in self._paged("batches", page, known, self._index):
            yield chunk

    def refresh(self) -> None:
        """Poll questions and queued requests now, after an answer or a cancellation."""
        self._questions.refresh()
        self._queued.refresh()

    async def _paged(self, event: str, page: Callable[[], dict[str, Any]], *signals: Signal) -> Chunks:
        """Yield a page, and again after each change that the signals announce."""
        sent: dict[str, Any] | None = None
        while True:
            changes = [signal.changes for signal in signals]
            if (content := page()) != sent:
                sent = content
                yield format_event(event, {**content, "size": _PAGE_SIZE, **await self.status()})
            else:
                yield format_event("status", await self.status())
            await _wait_for_any(*(each.wait_for_change(seen) for each, seen in zip(signals, changes, strict=True)))
            await asyncio.sleep(_BATCH_INTERVAL_S)

    async def _polled(self, event: str, seen: Polled[Any]) -> Chunks:
        """Yield an event named `event` for each value of `seen`.

        A value that is an object is the data of the event. A value that is a list becomes a field of the data, and the
        argument `event` is also the name of this field.
        """
        async with aclosing(batches(seen.changes(), lambda: 0.0)) as grouped:
            async for batch in grouped:
                if batch:
                    content = batch[-1] if isinstance(batch[-1], dict) else {event: batch[-1]}
                    yield format_event(event, {**content, **await self.status()})
                else:
                    yield format_event("status", await self.status())

    async def status(self) -> dict[str, Any]:
        """Return the data that all pages have."""
        supervised = {card.name for card in await self._client.operations.teams()}
        agents = self._agents.value["agents"] if self._agents.value else ()
        return {
            "live": {
                "namespace": self._client.subjects.namespace,
                "broker": self._client.bus.connected,
                "teams": [*sorted(supervised), *(name for name in sorted(self._index.teams) if name not in supervised)],
                "read": round(self._index.progress, 3),
                "questions": len(self._questions.value or ()),
                "letters": len(self._letters),
                "stuck": sum(agent["health"] in ("stuck", "failing") for agent in agents),
            }
        }

    async def _read_agents(self) -> dict[str, list[dict[str, Any]]]:
        cards = await self._client.operations.agents()
        names = sorted({*(card.name for card in cards), *self._index.agents})
        supervisors = await self._client.operations.teams()
        teams = sorted({card.name for card in supervisors})
        requests = await asyncio.gather(*(self._client.bus.depth(f"request-{name}", "requests") for name in teams))
        depths: Sequence[QueueDepth | None] = await asyncio.gather(
            *(self._client.operations.queue_depth(name) for name in names)
        )
        circuits = open_circuits(
            await self._client.operations.circuits(), {card.name for card in cards}, datetime.now(UTC)
        )
        now = await self._client.bus.time()
        return {
            "agents": views.agents_json(
                cards, dict(zip(names, depths, strict=True)), self._index.agents, circuits, now
            ),
            "teams": views.teams_json(supervisors, dict(zip(teams, requests, strict=True))),
        }

    async def _read_questions(self) -> list[dict[str, Any]]:
        return [question.model_dump(mode="json") for question in await self._client.operations.questions()]


async def _wait_for_any(*news: Coroutine[Any, Any, None]) -> None:
    """Return when one of the coroutines has returned, or after `KEEPALIVE_INTERVAL_S`."""
    waited = [asyncio.ensure_future(each) for each in news]
    try:
        await asyncio.wait(waited, timeout=KEEPALIVE_INTERVAL_S, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waited:
            each.cancel()


def _search(request: Request) -> Search:
    asked = request.query_params
    minutes = asked.get("minutes", "")
    since = datetime.now(UTC) - timedelta(minutes=int(minutes)) if _MINUTES.fullmatch(minutes) else None
    statuses = (asked["status"],) if asked.get("status") else ()
    return Search(asked.get("team", ""), statuses, _text(request), since)


def _text(request: Request) -> str:
    return request.query_params.get("text", "")[:_MAX_SEARCH_CHARS].casefold()


def _offset(request: Request) -> int:
    return parse_number(request.query_params.get("offset", ""))


def _last_event_id(request: Request) -> int:
    return parse_number(request.headers.get("last-event-id", ""))


def _limit_rows(rows: Iterable[WorkflowRow], most: int) -> list[WorkflowRow] | None:
    """Return all rows; None if there are more than `most`."""
    found = list(islice(rows, most + 1))
    return found if len(found) <= most else None
