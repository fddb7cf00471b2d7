"""Send a message to a workflow, and read the result of the message from the log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from dataclasses import dataclass
from uuid import uuid4

from pointsman.core.user_messages import next_turn_request_id, next_turn_workflow
from pointsman.engine.log.reader import (
    as_async_generator,
    check_not_imported,
    imported_from,
    read_commit,
)
from pointsman.engine.log.requests import find_request
from pointsman.engine.process.retrying import publish_with_retry
from pointsman.errors import ConflictError, ContractError, NotFoundError, PermissionDeniedError, PointsmanError
from pointsman.ports.bus import Bus, StoredMessage
from pointsman.ports.clock import Clock
from pointsman_schemas.envelope import Envelope, encode
from pointsman_schemas.events import MAX_MESSAGE_CHARS, Control
from pointsman_schemas.ids import derive_id
from pointsman_schemas.log import ThreadTurn, WorkflowEnded
from pointsman_schemas.strict_json import dump
from pointsman_schemas.subjects import Subjects

__all__ = ["MessageRefusedError", "TellResult", "tell_workflow"]


class MessageRefusedError(PointsmanError):
    """The workflow does not accept the message, because the workflow has ended or has too many messages."""

    kind = "message_refused"


@dataclass(frozen=True, slots=True)
class TellResult:
    """The result of a message to a workflow.

    Attributes:
        workflow: The id of the workflow.
        team: The team of the workflow.
        message: The result in one sentence.
        number: The number of the message in the workflow; None if no supervisor has recorded the message yet.
        next_turn: The workflow of the next turn of the thread, if the message begins the next turn.
    """

    workflow: str
    team: str
    message: str
    number: int | None = None
    next_turn: str | None = None


async def tell_workflow(
    bus: Bus,
    subjects: Subjects,
    clock: Clock,
    workflow: str,
    text: str,
    *,
    actor: str,
    team: str | None = None,
    message_id: str | None = None,
    timeout: float = 10.0,
) -> TellResult:
    """Send a message to a workflow, and wait until the workflow has recorded the message.

    Args:
        bus: The bus.
        subjects: The subjects of the namespace.
        clock: The clock.
        workflow: The workflow.
        text: The message.
        actor: The user who sends the message.
        team: The team of the workflow; None to look it up.
        message_id: The id of the message. If several messages have the same id, only one counts. Default: a new id.
        timeout: The longest wait for a supervisor, in seconds.

    Returns:
        The result. It has no number if no supervisor has recorded the message in time, or if the user has no right to
        read logs.

    Raises:
        ContractError: The message is empty or too long. Nothing was sent.
        MessageRefusedError: The workflow has ended and has no thread of this user, or accepts no further message.
        ImportedLogError: The workflow was imported. Nothing was sent.
        NotFoundError: The workflow does not exist.
        PermissionDeniedError: `team` is None, and the user has no right to look up the team.
    """
    if not text.strip() or len(text) > MAX_MESSAGE_CHARS:
        raise ContractError(
            f"the message {f'has {len(text)} characters' if text.strip() else 'is empty'}; expected a text of 1 to "
            f"{MAX_MESSAGE_CHARS} characters; nothing was sent"
        )
    name = uuid4().hex if message_id is None else derive_id("tell", workflow, actor, message_id)
    subject = subjects.log(team, workflow) if team is not None else subjects.workflow_log(workflow)
    sender = _Sender(bus, subjects, clock, workflow, actor, name)
    try:
        with bus.optional_requests(""):
            newest = await bus.last("log", subject)
    except PermissionDeniedError:
        if team is None:
            raise
        await sender.publish(team, text)
        return TellResult(
            workflow,
            team,
            f"the message is stored; {actor} has no right to read logs, so it is not known if the workflow accepts it",
        )
    if newest is None:
        queued = await find_request(bus, subjects.team_requests(team) if team else subjects.requests, workflow)
        if queued is None:
            raise NotFoundError(f"there is no workflow {workflow}; `pointsman list` shows the workflows")
        team = queued.subject.split(".")[2]
        await sender.publish(team, text)
        return TellResult(
            workflow, team, "the message is stored; the workflow records it when a supervisor admits the request"
        )
    check_not_imported(workflow, imported_from(newest))
    team = newest.subject.split(".")[2]
    commit = read_commit(newest)
    if isinstance(commit.entries[-1], WorkflowEnded):
        # Read the log before the publish: an earlier call with the same message id may have sent this message, and the
        # workflow may have recorded it before the workflow ended.
        present = bus.read("log", newest.subject)
        found = await sender.wait(team, present, commit.round)
        if found is not None:
            if found.number is None:
                await sender.publish(team, text)
            return found
    await sender.publish(team, text)
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout):
            found = await sender.wait(team, bus.follow("log", (newest.subject,)), commit.round)
            if found is not None:
                return found
    return TellResult(workflow, team, f"the message is stored; no supervisor of {team} has read the message yet")


class _Sender:
    """One message to one workflow."""

    def __init__(self, bus: Bus, subjects: Subjects, clock: Clock, workflow: str, actor: str, name: str) -> None:
        self._bus = bus
        self._subjects = subjects
        self._clock = clock
        self._workflow = workflow
        self._actor = actor
        self._name = name

    async def publish(self, team: str, text: str) -> None:
        """Store the message once."""
        envelope = Envelope(
            id=self._name,
            type=Control.event_type,
            source=self._subjects.source("client", "python"),
            time=self._clock.now(),
            subject=self._workflow,
        )
        subject = self._subjects.control(team, self._workflow, "tell", self._actor, self._name)
        with suppress(ConflictError):  # the message was sent before
            body = dump(Control(action="tell", text=text))
            await publish_with_retry(self._bus, subject, body, encode(envelope), expect=0)

    async def wait(self, team: str, log: AsyncIterator[StoredMessage], round: int) -> TellResult | None:
        """Return the result of the message in the log; None if the log has no result.

        Raises:
            MessageRefusedError: The workflow does not accept the message.
        """
        thread: ThreadTurn | None = None
        async with aclosing(as_async_generator(log)) as messages:
            async for stored in messages:
                for entry in read_commit(stored).entries:
                    match entry.kind:
                        case "workflow_started":
                            thread = entry.thread
                        case "message_received" if entry.event_id == self._name:
                            said = f"workflow {self._workflow} has recorded the message as number {entry.number}"
                            return TellResult(self._workflow, team, said, entry.number)
                        case "control_ignored" if entry.event_id == self._name:
                            raise MessageRefusedError(
                                f"workflow {self._workflow} does not accept the message: {entry.reason}"
                            )
                        case "workflow_ended" if entry.outcome.round >= round:
                            return self._late(team, thread, entry.outcome.status)
                        case _:
                            pass
        return None

    def _late(self, team: str, thread: ThreadTurn | None, status: str) -> TellResult:
        """Return the result of a message to a workflow that has ended. The message becomes the next turn of the thread.

        Raises:
            MessageRefusedError: The workflow has no thread of this user.
        """
        ended = f"workflow {self._workflow} has ended as {status}, so no step is left that could read the message"
        if thread is None:
            raise MessageRefusedError(f"{ended}; send a new request to {team}")
        if thread.caller != self._actor:
            raise MessageRefusedError(f"{ended}; only {thread.caller} can continue its thread {thread.thread}")
        request = next_turn_request_id(self._workflow, self._name)
        turn = next_turn_workflow(self._subjects, team, thread.caller, request)
        said = (
            f"workflow {self._workflow} has ended; the message is the next turn of its thread {thread.thread}: {turn}"
        )
        return TellResult(self._workflow, team, said, next_turn=turn)
