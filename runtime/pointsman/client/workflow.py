"""Follow one workflow: wait for its outcome, and read its events and its text. Cancel or resume the workflow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, aclosing, suppress
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import TYPE_CHECKING, NamedTuple, TypeAlias
from uuid import uuid4

from pointsman.client.streamed_text import StreamedTexts
from pointsman.engine.log.reader import (
    check_not_imported,
    follow_workflow,
    is_outcome,
    newest_commit,
    read_commit,
    round_of_outcome,
    wait_for_message,
)
from pointsman.engine.process.retrying import publish_with_retry
from pointsman.errors import ContractError, NotFoundError, PermissionDeniedError, PointsmanError
from pointsman.ports.bus import Bus, StoredMessage
from pointsman.telemetry import get_logger
from pointsman_schemas.envelope import Envelope, decode, encode
from pointsman_schemas.events import Control, Delta, Outcome, Progress
from pointsman_schemas.log import Commit, Entry, WorkflowEnded
from pointsman_schemas.strict_json import dump, parse
from pointsman_schemas.subjects import Subjects

if TYPE_CHECKING:
    from pointsman.engine.operations.messages import TellResult
    from pointsman.engine.operations.resume import ResumeResult

__all__ = ["FoundWorkflow", "Workflow", "WorkflowEvent", "find_workflow", "read_delta", "read_progress"]

_ADMISSION_NOTICE_S = 3.0  # seconds without admission before a warning is logged
_log = get_logger(__name__)

WorkflowEvent: TypeAlias = Entry | Progress
"""An item of `Workflow.events`: an entry of the log, or a report of an agent."""


class Workflow:
    """A workflow, for its caller. The request of the workflow might still wait for admission.

    Args:
        bus: The bus, after its setup.
        subjects: The subjects of the namespace.
        id: The workflow's id.
        team: The workflow's team.
        source: The CloudEvents source of the controls that this object sends.
        user: The name of the user, in the subjects of controls; default: `anonymous`.
        imported_from: The namespace from which the workflow was imported; None for a workflow of this namespace. An
            imported workflow does not continue, so `outcome` and `events` do not wait for its end.
        round: The number of the round whose end `outcome` awaits. The first round is 1, and each resume adds 1.
    """

    def __init__(
        self,
        bus: Bus,
        subjects: Subjects,
        id: str,
        team: str,
        *,
        source: str,
        user: str = "anonymous",
        imported_from: str | None = None,
        round: int = 1,
    ) -> None:
        self._bus = bus
        self._subjects = subjects
        self._source = source
        self._user = user
        self._imported_from = imported_from
        self.id = id
        self.team = team
        self.round = round

    async def outcome(self, timeout: float | None = None) -> Outcome:
        """Wait for the workflow's end.

        Args:
            timeout: The longest wait, in seconds; None means no limit.

        Returns:
            The outcome.

        Raises:
            TimeoutError: the workflow did not end in time. The workflow continues.
            ImportedLogError: the workflow was imported without an outcome.
        """
        subject = self._subjects.outcome(self.team, self.id)
        if self._imported_from is not None and await self._bus.last("log", subject) is None:
            check_not_imported(self.id, self._imported_from)
        warning = asyncio.create_task(self._warn_if_not_admitted())
        try:
            async with asyncio.timeout(timeout):
                stored = await wait_for_message(self._bus, "log", subject, self._is_wanted)
        except TimeoutError as error:
            raise TimeoutError(
                f"{self.id} of the team {self.team} had no outcome within {timeout} s; the workflow continues; "
                f"`pointsman show {self.id}` shows its tasks"
            ) from error
        finally:
            warning.cancel()
        return parse(Outcome, decode(stored.headers, stored.body)[1])

    async def _warn_if_not_admitted(self) -> None:
        """Log a warning after some seconds without admission, if the team has no live supervisor.

        The warning contains the most similar name of a live team, because the name of the team might be misspelled.
        """
        await asyncio.sleep(_ADMISSION_NOTICE_S)
        with suppress(PointsmanError), self._bus.optional_requests(""):
            if await self._bus.last("log", self._subjects.log(self.team, self.id)) is not None:
                return
            teams = {card.name for card in await self._bus.registry.cards() if card.team}
            if self.team in teams:
                return
            meant = get_close_matches(self.team, teams, 1)
            _log.warning(
                "request_not_admitted",
                workflow_id=self.id,
                team=self.team,
                reason=f"no supervisor of the team {self.team} is live",
                hint=f"did you mean {meant[0]}?" if meant else f"live teams: {', '.join(sorted(teams)) or 'none'}",
            )

    def _is_wanted(self, stored: StoredMessage) -> bool:
        return is_outcome(stored) and round_of_outcome(stored) >= self.round

    async def events(self) -> AsyncIterator[WorkflowEvent]:
        """Yield the events of the workflow from its start. Wait for future events until the workflow ends.

        Yields:
            Entries of the log and reports of agents, in order. The last entry is the newest `WorkflowEnded`. If the
            workflow was imported before its end, there is no such entry. A resumed workflow has one `WorkflowEnded` for
            each round.
        """
        subjects = self._subjects
        present = self._imported_from is not None  # an imported workflow gets no further events
        followed = follow_workflow(self._bus, subjects, self.id, team=self.team, present_only=present)
        async with aclosing(followed) as messages:
            async for stored in messages:
                for event in _events_of(stored, subjects):
                    yield event
                    if isinstance(event, WorkflowEnded) and event.outcome.round >= self.round:
                        head = await self._bus.last("log", subjects.log(self.team, self.id))
                        if head is None or head.sequence <= stored.sequence:  # no later commit has resumed the workflow
                            return

    async def stream_text(self, receive: Callable[[Delta], Awaitable[None]]) -> AbstractAsyncContextManager[None]:
        """Receive the text of agents that have `stream`, while their models write it. Text is not stored.

        A piece at the offset 0 starts a text. A repeated model call starts a new text. If you start late or lose the
        connection, the missed pieces of a running model call arrive within a second.

        Args:
            receive: Function that is called once with each piece of text, in order.

        Returns:
            A context manager. Pieces of text arrive until the context ends.
        """
        texts = StreamedTexts()

        async def deliver(stored: StoredMessage) -> None:
            if (delta := read_delta(stored)) is not None and (piece := texts.add(delta)) is not None:
                await receive(piece)

        return await self._bus.listen(self._subjects.workflow_deltas(self.team, self.id), deliver)

    async def resume(self, reason: str = "", *, actor: str | None = None, timeout: float = 10.0) -> ResumeResult:
        """Resume the workflow, which ended as failed or partial. Its failed tasks are done again in a new round.

        The results of successful tasks stay. The new round gets the full limits of the workflow. Two concurrent resumes
        start one round. After this call, `outcome` waits for the outcome of the new round.

        Args:
            reason: The reason, for the log.
            actor: The user who resumes. Default: the user of the client. The broker must allow the client to name a
                different user.
            timeout: The longest wait for a supervisor, in seconds.

        Returns:
            The new round and its tasks.

        Raises:
            NotResumableError: the workflow runs, has completed, was cancelled or is a child workflow, or no supervisor
                started the round in time.
            NotFoundError: the workflow has no log.
            ImportedLogError: the workflow was imported. Nothing was sent.
        """
        from pointsman.clock import SystemClock
        from pointsman.engine.operations.resume import resume_workflow

        resumed = await resume_workflow(
            self._bus, self._subjects, SystemClock(), self.id, reason=reason, actor=actor or self._user, timeout=timeout
        )
        self.round = resumed.round
        return resumed

    async def tell(
        self, text: str, *, message_id: str | None = None, actor: str | None = None, timeout: float = 10.0
    ) -> TellResult:
        """Send a message to the workflow, and wait until the workflow has recorded the message.

        Args:
            text: The message, of at most 4,000 characters.
            message_id: The id of the message. A second message with this id has no effect. Default: a new id.
            actor: The user who sends the message. Default: the user of the client. The broker must allow the client to
                name a different user.
            timeout: The longest wait for a supervisor, in seconds.

        Returns:
            The number of the message, or the workflow of the next turn. Both are None if no supervisor has read the
            message in time.

        Raises:
            ContractError: the message is empty or too long. Nothing was sent.
            MessageRefusedError: the workflow has ended and is in no thread of this user, or the workflow accepts no
                further message.
            ImportedLogError: the workflow was imported. Nothing was sent.
        """
        from pointsman.clock import SystemClock
        from pointsman.engine.operations.messages import tell_workflow

        return await tell_workflow(
            self._bus,
            self._subjects,
            SystemClock(),
            self.id,
            text,
            actor=actor or self._user,
            team=self.team,
            message_id=message_id,
            timeout=timeout,
        )

    async def cancel(self, reason: str = "", *, actor: str | None = None) -> Outcome | None:
        """Cancel the workflow. A workflow that waits for admission ends without admission.

        Args:
            reason: The reason, for the outcome.
            actor: The user who cancels. Default: the user of the client. The broker must allow the client to name a
                different user.

        Returns:
            None after the cancellation was stored. The outcome if the workflow had ended before; nothing is sent then.

        Raises:
            NotFoundError: the namespace has no workflow of this id.
            ImportedLogError: the workflow was imported before its end. Nothing was sent.
        """
        if (ended := await self._outcome_before_cancel()) is not None:
            return ended
        name = uuid4().hex
        envelope = Envelope(
            id=name, type=Control.event_type, source=self._source, time=datetime.now(UTC), subject=self.id
        )
        await publish_with_retry(
            self._bus,
            self._subjects.control(self.team, self.id, "cancel", actor or self._user, name),
            dump(Control(action="cancel", reason=reason)),
            encode(envelope),
        )
        return None

    async def _outcome_before_cancel(self) -> Outcome | None:
        """Return the outcome if the workflow has ended. For a user that may not read logs, read only the outcome."""
        try:
            with self._bus.optional_requests(""):
                found = await find_workflow(self._bus, self._subjects, self.id)
        except PermissionDeniedError:
            stored = await self._bus.last("log", self._subjects.outcome(self.team, self.id))
            return None if stored is None else parse(Outcome, decode(stored.headers, stored.body)[1])
        for entry in found.commit.entries if found.commit else ():
            if isinstance(entry, WorkflowEnded):
                return entry.outcome
        check_not_imported(self.id, found.imported_from)
        return None


def _events_of(stored: StoredMessage, subjects: Subjects) -> Iterator[WorkflowEvent]:
    if subjects.kind_of(stored.subject) == "log":
        yield from read_commit(stored).entries
    elif (report := read_progress(stored)) is not None:
        yield report


class FoundWorkflow(NamedTuple):
    """A workflow's team, its newest commit, and the namespace from which it was imported.

    Attributes:
        team: The team.
        commit: The newest commit; None while the request waits for admission.
        imported_from: The namespace of origin; None for a workflow of this namespace.
    """

    team: str
    commit: Commit | None
    imported_from: str | None = None


async def find_workflow(bus: Bus, subjects: Subjects, workflow: str) -> FoundWorkflow:
    """Find the team and the newest commit of a workflow.

    Args:
        bus: The bus.
        subjects: The subjects of the namespace.
        workflow: The workflow's id.

    Returns:
        The workflow.

    Raises:
        NotFoundError: the namespace has no workflow of this id.
    """
    with suppress(NotFoundError):
        return FoundWorkflow(*await newest_commit(bus, subjects, workflow))
    from pointsman.engine.operations.queued_requests import find_queued_request

    if (waits := await find_queued_request(bus, subjects, workflow)) is not None:
        return FoundWorkflow(waits.team, None)
    # Read the log again, because the workflow might have been admitted between the two reads.
    return FoundWorkflow(*await newest_commit(bus, subjects, workflow))


def read_delta(stored: StoredMessage) -> Delta | None:
    """Read a piece of text of a model.

    Args:
        stored: A message on a delta subject.

    Returns:
        The piece. None for a message with a different form, or if the piece names a different agent than the subject.
    """
    try:
        delta = parse(Delta, decode(stored.headers, stored.body)[1])
    except ContractError:
        return None
    return delta if _is_of_its_agent(stored, delta) else None


def read_progress(stored: StoredMessage) -> Progress | None:
    """Read an agent's report.

    Args:
        stored: A message on an event subject.

    Returns:
        The report. None for a domain event of an agent, which has a different form. Also None if the report names a
        different agent than the subject.
    """
    try:
        _, body = decode(stored.headers, stored.body)
        report = parse(Progress, body)
    except ContractError:
        return None
    return report if _is_of_its_agent(stored, report) else None


def _is_of_its_agent(stored: StoredMessage, event: Delta | Progress) -> bool:
    """Return True if the subject names the agent and the workflow of the event.

    The subject proves the origin, because the broker allows an agent to publish only on subjects with its own name.
    """
    return stored.subject.split(".")[3:5] == [event.workflow_id, event.agent]
