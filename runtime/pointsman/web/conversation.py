"""Send the data of one thread's page: the turns, the work on running turns, text of models, and open questions.

| Event | Data |
|---|---|
| `thread` | the ids of the turns in order, the summary of earlier turns, and the record of a deletion |
| `turn` | one turn from the record of the thread, or a request that no supervisor has admitted yet |
| `work` | the state of the workflow of a turn: tasks with their calls, answer, files |
| `text` | pieces of text that models write; pieces are not stored, and the whole answer follows in `work` |
| `asked` | the open questions of the running turns |
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any, TypeAlias

from pointsman.client.client import Client, WorkflowSummary
from pointsman.core.threads.turns import LOST
from pointsman.core.views.formatting import request_text
from pointsman.engine.log.reader import as_async_generator, gather_batched, read_workflow_started
from pointsman.engine.log.records import THREAD
from pointsman.errors import ContractError, NotFoundError, PointsmanError
from pointsman.http.sse import KEEPALIVE_INTERVAL_S, format_event
from pointsman.web import views
from pointsman.web.live_workflow import LiveWorkflow
from pointsman.web.sse import Chunks, Polled
from pointsman_schemas.envelope import decode
from pointsman_schemas.events import Delta, Outcome
from pointsman_schemas.strict_json import parse
from pointsman_schemas.threads import Thread, Turn

__all__ = ["Conversation"]

_TextKey: TypeAlias = tuple[str, str, int, str]  # workflow, task, attempt and agent
_BATCH_INTERVAL_S = 0.1  # seconds in which changes are gathered before they are sent; text still appears smoothly
_POLL_INTERVAL_S = 2.0  # seconds between two polls for requests that no supervisor has admitted
_SHOWN_TURNS = 50  # number of turns on the page, the newest; the page of workflows has the others
_FOLLOWED_TURNS = 10  # number of turns whose work is followed at a time: the oldest open turns, because they run first
_MAX_TEXT_CHARS = 100_000  # number of characters of one attempt that wait for a slow browser; more are dropped


class Conversation:
    """The page of one thread while it is open.

    Args:
        client: The client.
        questions: The open questions of the namespace.
        status: Function that returns the common data of all pages. This data is sent after each change.
        team: The team.
        caller: The caller to whom the thread belongs.
        thread: The id of the thread.
    """

    def __init__(
        self,
        client: Client,
        questions: Polled[list[dict[str, Any]]],
        status: Callable[[], Awaitable[Mapping[str, Any]]],
        *,
        team: str,
        caller: str,
        thread: str,
    ) -> None:
        self._client = client
        self._questions = questions
        self._status = status
        self._team = team
        self._caller = caller
        self._thread = thread
        self._queued: Polled[Sequence[WorkflowSummary]] = Polled(self._read_queued, _POLL_INTERVAL_S)
        self._taken: dict[str, Turn] = {}
        self._untaken: Sequence[WorkflowSummary] = ()
        self._workflows: dict[str, set[str]] = {}  # by followed turn: its workflow and the child workflows
        self._following: dict[str, asyncio.Task[None]] = {}
        # the data to send, by event and turn; newer data replace older data, so a slow reader gets the newest
        self._pending: dict[tuple[str, str], Any] = {}
        self._texts: dict[_TextKey, list[str]] = {}
        self._restarted: set[_TextKey] = set()
        self._asked: list[dict[str, Any]] = []
        self._arrived = asyncio.Event()
        self._failure: PointsmanError | None = None
        self._last: Thread | None = None

    async def chunks(self) -> Chunks:
        """Yield the present state, and then each change.

        Yields:
            Server-sent events.

        Raises:
            PointsmanError: The broker is unavailable, or the record of the thread cannot be read.
        """
        tasks = [self._start(each) for each in (self._follow_record(), self._follow_queue(), self._follow_questions())]
        try:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(KEEPALIVE_INTERVAL_S):
                        await self._arrived.wait()
                self._arrived.clear()
                if self._failure is not None:
                    raise self._failure
                pending, self._pending = self._pending, {}
                texts, self._texts = self._texts, {}
                for (event, _), data in pending.items():
                    yield format_event(event, data)
                if texts:
                    yield format_event("text", {"pieces": [self._piece(key, text) for key, text in texts.items()]})
                    self._restarted -= texts.keys()
                yield format_event("status", await self._status())
                await asyncio.sleep(_BATCH_INTERVAL_S)
        finally:
            left = [*tasks, *self._following.values()]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a part of the page. If the part fails, the stream ends, and the browser opens the stream again."""

        async def run() -> None:
            try:
                await work
            except PointsmanError as error:
                self._failure = error
                self._arrived.set()

        return asyncio.create_task(run())

    def _put(self, event: str, of: str, data: Any) -> None:
        self._pending[event, of] = data
        self._arrived.set()

    # The record of the thread, and the requests that are not yet in the record

    async def _follow_record(self) -> None:
        bus, subject = self._client.bus, self._client.subjects.thread(self._team, self._caller, self._thread)
        newest = await bus.last("log", subject)
        if newest is None:
            self._show_thread(None)
        after = newest.sequence - 1 if newest else 0
        async with aclosing(as_async_generator(bus.follow("log", [subject], after=after))) as messages:
            async for stored in messages:
                await self._show(THREAD.parse(stored))

    async def _show(self, thread: Thread) -> None:
        turns = thread.turns[-_SHOWN_TURNS:]
        for turn in turns:
            if self._taken.get(turn.workflow_id) != turn:
                self._put("turn", turn.workflow_id, _turn_json(turn))
        before, self._taken = self._taken, {turn.workflow_id: turn for turn in turns}
        self._show_thread(thread)
        open_turns = [turn.workflow_id for turn in turns if turn.status != "ended"]
        for workflow in open_turns[:_FOLLOWED_TURNS]:
            if workflow not in self._following:
                self._following[workflow] = self._start(self._follow_turn(workflow))
        ended = [turn for turn in turns if turn.status == "ended" and before.get(turn.workflow_id) != turn]
        for turn in ended:
            if turn.outcome == LOST and turn.workflow_id in self._following:
                self._following[turn.workflow_id].cancel()  # the workflow never began, so it never ends either
        await self._show_ended([turn for turn in ended if turn.workflow_id not in self._following])

    def _show_thread(self, thread: Thread | None) -> None:
        waiting = [each.id for each in self._untaken if each.id not in self._taken]
        data = {
            "turns": [*self._taken, *waiting],
            "earlier": len(thread.earlier) + len(thread.turns) - len(self._taken) if thread else 0,
            "summary": thread.summary if thread else "",
            "summarized": thread.summarized if thread else 0,
            "deleted_at": thread.deleted_at if thread else None,
            "deleted_by": thread.deleted_by if thread else "",
        }
        self._last = thread
        self._put("thread", "", data)

    async def _show_ended(self, turns: Sequence[Turn]) -> None:
        """Show the whole answers and files of ended turns, because the record has only the beginnings of the texts."""
        for found in await gather_batched(self._read_ended(turn.workflow_id) for turn in turns):
            if found is not None:
                self._put("work", found["id"], found)

    async def _read_ended(self, workflow: str) -> dict[str, Any] | None:
        bus, subjects = self._client.bus, self._client.subjects
        stored = await bus.last("log", subjects.outcome(self._team, workflow))
        try:
            started = await read_workflow_started(bus, subjects, subjects.log(self._team, workflow))
        except (NotFoundError, ContractError):  # the log has expired
            return None
        return views.ended_json(started, parse(Outcome, decode(stored.headers, stored.body)[1])) if stored else None

    async def _read_queued(self) -> Sequence[WorkflowSummary]:
        found = await self._client.queued_requests(self._team)
        return [each for each in found if (each.caller, each.thread) == (self._caller, self._thread)]

    async def _follow_queue(self) -> None:
        async with aclosing(self._queued.changes()) as changes:
            async for queued in changes:
                for each in queued:
                    if each.id not in self._taken:
                        self._put("turn", each.id, _untaken_json(each))
                if [each.id for each in queued] != [each.id for each in self._untaken]:
                    self._untaken = queued
                    self._show_thread(self._last)

    # The work on a turn

    async def _follow_turn(self, workflow: str) -> None:
        handle = await self._client.workflow(workflow, self._team)
        self._workflows[workflow] = {workflow}
        live = LiveWorkflow(self._client, workflow, self._team)
        async with await handle.stream_text(self._receive_text), aclosing(live.changes()) as changes:
            async for change in changes:
                if (view := change.view) is None:
                    continue
                self._put("work", workflow, {**view, "notes": live.notes})
                self._workflows[workflow] |= {child["workflow"] for child in view["children"]}
                if any(line.kind.startswith("question_") for line in change.lines):
                    self._questions.refresh()
                self._show_questions()
                if view["outcome"] is not None:
                    return  # if the workflow is resumed later, only its own page shows the further work

    async def _receive_text(self, delta: Delta) -> None:
        key = delta.workflow_id, delta.task_id, delta.attempt, delta.agent
        if delta.call and delta.offset == 0:  # a model call begins, or begins again, so drop the queued text
            self._texts.pop(key, None)
            self._restarted.add(key)
        pieces = self._texts.setdefault(key, [])
        if sum(map(len, pieces)) < _MAX_TEXT_CHARS:
            pieces.append(delta.text)
        self._arrived.set()

    def _piece(self, key: _TextKey, text: Sequence[str]) -> dict[str, object]:
        workflow, task, attempt, agent = key
        return {
            "workflow": workflow,
            "task": task,
            "attempt": attempt,
            "agent": agent,
            "text": "".join(text),
            "begins": key in self._restarted,
        }

    async def _follow_questions(self) -> None:
        async with aclosing(self._questions.changes()) as changes:
            async for _ in changes:
                self._show_questions()

    def _show_questions(self) -> None:
        below = set().union(*self._workflows.values())
        asked = [each for each in self._questions.value or () if each["workflow_id"] in below]
        if asked != self._asked:
            self._asked = asked
            self._put("asked", "", {"questions": asked})


def _turn_json(turn: Turn) -> dict[str, Any]:
    return {
        "id": turn.workflow_id,
        "number": turn.number,
        "status": turn.outcome or turn.status,
        "request": turn.request,
        "answer": turn.answer,
        "asked_at": turn.asked_at,
        "ended_at": turn.ended_at,
    }


def _untaken_json(request: WorkflowSummary) -> dict[str, Any]:
    return {
        "id": request.id,
        "number": None,
        "status": request.status,
        "request": request_text(request.input),
        "answer": "",
        "asked_at": request.started_at,
        "ended_at": None,
    }
