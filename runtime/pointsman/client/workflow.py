"""One workflow, seen from outside: its outcome, what happens in it, and its end when somebody asks for that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing, suppress
from datetime import UTC, datetime
from typing import TypeAlias
from uuid import uuid4

from pointsman.engine.log.reader import as_async_generator, is_outcome, newest_commit, read_commit, wait_for_message
from pointsman.engine.process.retrying import publish_with_retry
from pointsman.errors import ContractError, NotFoundError
from pointsman.ports.bus import Bus, StoredMessage
from pointsman_schemas.envelope import Envelope, decode, encode
from pointsman_schemas.events import Control, Delta, Outcome, Progress
from pointsman_schemas.log import Commit, Entry, WorkflowEnded
from pointsman_schemas.strict_json import dump, parse
from pointsman_schemas.subjects import Subjects

__all__ = ["Workflow", "WorkflowEvent", "newest_commit_of", "read_progress"]

WorkflowEvent: TypeAlias = Entry | Progress
"""What `Workflow.events` yields: an entry of the log, or an agent's report."""


class Workflow:
    """One workflow, seen from outside. It may not have been admitted yet."""

    def __init__(self, bus: Bus, subjects: Subjects, id: str, team: str, *, source: str) -> None:
        self._bus = bus
        self._subjects = subjects
        self._source = source
        self.id = id
        self.team = team

    async def outcome(self, timeout: float | None = None) -> Outcome:
        """The one final answer, waiting for it `timeout` seconds, or as long as it takes.

        Raises:
            TimeoutError: it did not end in time. The workflow goes on.
        """
        subject = self._subjects.outcome(self.team, self.id)
        try:
            async with asyncio.timeout(timeout):
                stored = await wait_for_message(self._bus, "log", subject, is_outcome)
        except TimeoutError as error:
            raise TimeoutError(
                f"{self.id} of the team {self.team} had no outcome within {timeout} s; it goes on: "
                f"`pointsman show {self.id}` says where it is"
            ) from error
        return parse(Outcome, decode(stored.headers, stored.body)[1])

    async def events(self) -> AsyncIterator[WorkflowEvent]:
        """What happened and what happens, in order: the log's entries and the agents' reports. Ends after
        `WorkflowEnded`. Waits for the first as long as it takes."""
        subjects = self._subjects
        wanted = (subjects.log(self.team, self.id), subjects.workflow_events(self.id))
        async with aclosing(as_async_generator(self._bus.follow("log", wanted))) as messages:
            async for stored in messages:
                if stored.subject.startswith(f"{subjects.namespace}.event."):
                    if (report := read_progress(stored)) is not None:
                        yield report
                    continue
                for entry in read_commit(stored).entries:
                    yield entry
                    if isinstance(entry, WorkflowEnded):
                        return

    async def stream_text(self, heard: Callable[[Delta], Awaitable[None]]) -> AbstractAsyncContextManager[None]:
        """Call `heard` with the text that agents with `stream` write, while they write it, until the context ends."""

        async def tell(stored: StoredMessage) -> None:
            with suppress(ContractError):
                await heard(parse(Delta, decode(stored.headers, stored.body)[1]))

        return await self._bus.listen(self._subjects.live(self.id, "delta"), tell)

    async def cancel(self, reason: str = "", *, by: str = "a client") -> Outcome | None:
        """Ask for its end. None once asked; the outcome, with nothing sent, when it has ended already. One that waits
        for its admission is ended without it.

        Raises:
            NotFoundError: nobody has asked for it.
        """
        _, newest = await newest_commit_of(self._bus, self._subjects, self.id)
        for entry in newest.entries if newest else ():
            if isinstance(entry, WorkflowEnded):
                return entry.outcome
        name = uuid4().hex
        envelope = Envelope(
            id=name, type=Control.event_type, source=self._source, time=datetime.now(UTC), subject=self.id
        )
        await publish_with_retry(
            self._bus,
            self._subjects.control(self.team, self.id, name),
            dump(Control(action="cancel", reason=reason, by=by)),
            encode(envelope),
            message_id=name,
        )
        return None


async def newest_commit_of(bus: Bus, subjects: Subjects, workflow: str) -> tuple[str, Commit | None]:
    """The team of a workflow and its newest commit; None while it waits for its admission. Raises `NotFoundError`."""
    with suppress(NotFoundError):
        return await newest_commit(bus, subjects, workflow)
    from pointsman.engine.operations.queued_requests import find_queued_request

    if (waits := await find_queued_request(bus, subjects, workflow)) is not None:
        return waits.team, None
    return await newest_commit(bus, subjects, workflow)  # it may have been admitted meanwhile


def read_progress(stored: StoredMessage) -> Progress | None:
    """An agent's report, or None for a domain event of another shape: those are between the agents."""
    try:
        _, body = decode(stored.headers, stored.body)
        return parse(Progress, body)
    except ContractError:
        return None
