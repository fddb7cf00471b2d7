"""Follow one workflow from outside: its outcome, its events, its text, its cancellation."""

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
"""An item of `Workflow.events`: an entry of the log, or a report of an agent."""


class Workflow:
    """A workflow as its caller sees it. Its request may still wait for admission.

    Args:
        bus: The bus, set up.
        subjects: The subjects of the namespace.
        id: The workflow's id.
        team: The workflow's team.
        source: The CloudEvents source of the controls that this object sends.
    """

    def __init__(self, bus: Bus, subjects: Subjects, id: str, team: str, *, source: str) -> None:
        self._bus = bus
        self._subjects = subjects
        self._source = source
        self.id = id
        self.team = team

    async def outcome(self, timeout: float | None = None) -> Outcome:
        """Wait for the workflow's end.

        Args:
            timeout: The longest wait, in seconds; None is no bound.

        Returns:
            The outcome.

        Raises:
            TimeoutError: the workflow did not end in time. It goes on.
        """
        subject = self._subjects.outcome(self.team, self.id)
        try:
            async with asyncio.timeout(timeout):
                stored = await wait_for_message(self._bus, "log", subject, is_outcome)
        except TimeoutError as error:
            raise TimeoutError(
                f"{self.id} of the team {self.team} had no outcome within {timeout} s; it goes on; "
                f"`pointsman show {self.id}` shows its tasks"
            ) from error
        return parse(Outcome, decode(stored.headers, stored.body)[1])

    async def events(self) -> AsyncIterator[WorkflowEvent]:
        """Yield the events of the workflow from its start to its end, and wait for those to come.

        Yields:
            Entries of the log and reports of agents, in order. The last is `WorkflowEnded`.
        """
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

    async def stream_text(self, receive: Callable[[Delta], Awaitable[None]]) -> AbstractAsyncContextManager[None]:
        """Receive the text of agents with `stream` while their models write it. Text is not stored.

        Args:
            receive: Called with each piece of text, in order.

        Returns:
            A context manager; pieces of text arrive until it is left.
        """

        async def deliver(stored: StoredMessage) -> None:
            with suppress(ContractError):
                await receive(parse(Delta, decode(stored.headers, stored.body)[1]))

        return await self._bus.listen(self._subjects.live(self.id, "delta"), deliver)

    async def cancel(self, reason: str = "", *, by: str = "a client") -> Outcome | None:
        """Request the end of the workflow. A workflow that waits for admission ends without being admitted.

        Args:
            reason: The reason, for the outcome.
            by: The person or system that cancels.

        Returns:
            None once the request is stored; the outcome, with nothing sent, where the workflow has ended already.

        Raises:
            NotFoundError: the namespace has no workflow of this id.
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
    """Find the team and the newest commit of a workflow.

    Args:
        bus: The bus.
        subjects: The subjects of the namespace.
        workflow: The workflow's id.

    Returns:
        The team, and the commit; None in its place while the request waits for admission.

    Raises:
        NotFoundError: the namespace has no workflow of this id.
    """
    with suppress(NotFoundError):
        return await newest_commit(bus, subjects, workflow)
    from pointsman.engine.operations.queued_requests import find_queued_request

    if (waits := await find_queued_request(bus, subjects, workflow)) is not None:
        return waits.team, None
    return await newest_commit(bus, subjects, workflow)  # the workflow may have been admitted between the two reads


def read_progress(stored: StoredMessage) -> Progress | None:
    """Read an agent's report.

    Args:
        stored: A message on an event subject.

    Returns:
        The report; None for a domain event of another shape, which only the agents read.
    """
    try:
        _, body = decode(stored.headers, stored.body)
        return parse(Progress, body)
    except ContractError:
        return None
