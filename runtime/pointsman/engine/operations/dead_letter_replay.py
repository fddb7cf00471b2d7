"""Send the event of a dead letter again.

| The letter's event | Effect of a replay |
|---|---|
| a request | The request is published again with a new id, and starts a new workflow. |
| a handoff of a running workflow | The supervisor reopens the task: a new attempt with the same idempotency key. |
| a handoff of an ended workflow | The replay is refused. Resume the workflow, or start a new workflow by `as_new`. |
| a result or a control of a running workflow | The event is published again. |

Every new id is computed from the id of the letter. So two replays of one letter make one workflow, or one new attempt.

The subject of a letter names its origin, and a permission limits a worker to letters of its own agents. No permission
limits the body of a letter, so a worker could forge a letter with any event. So a replay sends only events that the
origin can have received: requests, controls and results of the team, and tasks that were handed to the agent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing, suppress
from typing import NamedTuple

from pointsman.engine.log.reader import (
    as_async_generator,
    check_not_imported,
    newest_commit,
    read_commit,
    read_entries,
    read_workflow_started,
)
from pointsman.engine.log.requests import workflow_of_request
from pointsman.engine.operations.dead_letter_entry import DeadLetterEntry
from pointsman.engine.process.dead_lettering import stream_of
from pointsman.engine.process.retrying import publish_with_retry
from pointsman.errors import ConflictError, ContractError, PointsmanError
from pointsman.ports.bus import Bus, StoredMessage
from pointsman.ports.clock import Clock
from pointsman_schemas.envelope import Envelope, encode, read_identity
from pointsman_schemas.events import Control, DeadLetter, Event, Request, Result
from pointsman_schemas.ids import derive_id, workflow_id_for
from pointsman_schemas.log import BudgetAwaited, RetryScheduled, TaskDispatched, TaskFailed, TaskReopened, WorkflowEnded
from pointsman_schemas.strict_json import compact_json, dump, parse_json
from pointsman_schemas.subjects import Subjects

__all__ = ["DeadLetterReplay", "NotReplayableError", "Replayed"]

_INPUT_KINDS = ("result", "control")  # without timers, because a workflow arms its timers again


class NotReplayableError(PointsmanError):
    """The dead letter cannot be replayed in this way. The message has the reason and the next step."""

    kind = "not_replayable"


class Replayed(NamedTuple):
    """The effect of a replay.

    Attributes:
        action: `request`, `task` or `event`.
        workflow: The workflow that continues, or the new workflow.
    """

    action: str
    workflow: str


class DeadLetterReplay:
    """Sends the events of dead letters again.

    Args:
        bus: The bus.
        subjects: The subjects of the namespace.
        user: The name of the user for the subjects of controls.
        clock: The clock of new events.
        patience: The time that a supervisor may take to reopen a task, in seconds.
    """

    def __init__(self, bus: Bus, subjects: Subjects, user: str, clock: Clock, patience: float) -> None:
        self._bus = bus
        self._subjects = subjects
        self._user = user
        self._source = subjects.source("client", "dead-letters")
        self._clock = clock
        self._reopen_timeout = patience

    async def send(self, letter: DeadLetterEntry, *, as_new: bool, check_agent: bool) -> Replayed:
        """Send the event of a letter again. A repeated call has no further effect.

        Args:
            letter: The letter.
            as_new: True to send the request of the letter's workflow as a new workflow.
            check_agent: True to refuse `as_new` if the agent of the letter's task is not live.

        Returns:
            The action and its workflow.

        Raises:
            NotReplayableError: The workflow has ended and `as_new` is not set, the event cannot be replayed, the letter
                was imported, or the agent of a task is not live.
            NotFoundError: The workflow has no log.
        """
        content = letter.content
        if letter.imported_from is not None:
            raise NotReplayableError(
                f"dead letter {content.id} was imported from the namespace {letter.imported_from!r} for reading only; "
                "replay the letter in that namespace; `pointsman dead discard` removes the imported letter"
            )
        kind = self._subjects.kind_of(content.subject)
        await self._check_origin(content, kind)
        if kind == "request":
            return Replayed("request", await self._replay_request(letter))
        if as_new:
            of_task = kind not in _INPUT_KINDS
            return Replayed("request", await self._resubmit_request(content, task=of_task and check_agent))
        if kind == "handoff" or (kind == "schedule" and content.task_id):
            return Replayed("task", await self._reopen_task(content))
        if kind in _INPUT_KINDS:
            return Replayed("event", await self._publish_event(letter))
        raise NotReplayableError(_unknown_kind(content))

    async def _check_origin(self, content: DeadLetter, kind: str) -> None:
        """Refuse a letter about a message that its origin cannot have received.

        Raises:
            NotReplayableError: The message was sent to another team or agent, belongs to another workflow, or is of a
                kind that is not replayed.
        """
        tokens = content.subject.split(".")[2:]
        match kind:
            case "request":
                own = tokens[:1] == [content.origin]
            case "control" | "timer":
                own = tokens[:2] == [content.origin, content.workflow_id]
            case "result":
                own = tokens[:1] + tokens[2:3] == [content.origin, content.workflow_id]
            case "handoff" | "schedule":
                own = await self._was_handed(content)
            case _:
                raise NotReplayableError(_unknown_kind(content))
        if not own:
            raise NotReplayableError(
                f"dead letter {content.id} has the origin {content.origin}, but {content.origin} receives no messages "
                f"of its workflow on {content.subject!r}; a program with the permissions of {content.origin} may have "
                "forged the letter; `pointsman dead discard` removes the letter"
            )

    async def _was_handed(self, content: DeadLetter) -> bool:
        """Return True if the task of a letter was handed to the origin, or failed without a handoff.

        A letter without a workflow or a task is forged, because each subject of a handoff names a workflow and a task.
        """
        if content.workflow_id is None or content.task_id is None:
            return False
        entries = await read_entries(self._bus, self._subjects, content.workflow_id)
        attempts = [each for each in entries if isinstance(each, TaskDispatched | RetryScheduled | BudgetAwaited)]
        agents = {each.agent for each in attempts if each.task_id == content.task_id}
        failed = any(isinstance(each, TaskFailed) and each.task_id == content.task_id for each in entries)
        return content.origin in agents or (not agents and failed)

    async def _replay_request(self, letter: DeadLetterEntry) -> str:
        """Publish the request with a new id, which is computed from the letter.

        With its old id, the request would count as a repetition of the request of its old workflow.

        Returns:
            The id of the new workflow.
        """
        content = letter.content
        request_id = _request_id(content)
        headers, body = self._with_event_id(content.headers, await self._full_body(letter), request_id, Request)
        await publish_with_retry(self._bus, content.subject, body, headers)
        return workflow_of_request(StoredMessage(content.subject, body, headers, 0, content.at))

    async def _resubmit_request(self, content: DeadLetter, *, task: bool) -> str:
        """Send the request of the letter's workflow again, as a new workflow. The request is read from the log.

        Each replay of the letter makes the same new workflow. If `task` is True and the agent of the letter's task is
        not live, nothing is sent, because the new workflow would fail at once.

        Returns:
            The id of the new workflow.

        Raises:
            NotReplayableError: The log has no readable request, or the agent of the task is not live.
        """
        workflow = _workflow(content)
        started = await read_workflow_started(self._bus, self._subjects, self._subjects.workflow_log(workflow))
        if started.input == "":
            raise NotReplayableError(
                f"dead letter {content.id} belongs to workflow {workflow}, whose request could not be read and cannot "
                "be sent again; correct the request and publish the corrected request"
            )
        if task and content.origin not in {card.name for card in await self._bus.registry.cards()}:
            raise NotReplayableError(
                f"dead letter {content.id} belongs to agent {content.origin!r}, which is not live, so a new workflow "
                "may fail at once; nothing was sent, and the letter remains; start the agent and replay the letter "
                "again, or send the request nevertheless with `pointsman dead replay --as-new --keep`"
            )
        request = Request(
            input=started.input,
            metadata=started.metadata,
            budget=started.budget,
            reply_to=started.reply_to,
            deadline=max((started.deadline - started.at).total_seconds(), 1.0),
        )
        request_id = _request_id(content)
        envelope = Envelope(
            id=request_id,
            type=Request.event_type,
            source=self._source,
            time=self._clock.now(),
            correlation_id=started.correlation_id,
            causation_id=content.id,
        )
        caller = started.caller if started.parent is None else ""  # the caller of a child is a team, not a user
        subject = self._subjects.request(started.team, caller or self._user)
        await publish_with_retry(self._bus, subject, dump(request), encode(envelope))
        return workflow_id_for(subject, request_id, self._source)

    async def _reopen_task(self, content: DeadLetter) -> str:
        workflow = _workflow(content)
        team = await self._running_team(content, workflow)
        if content.task_id is None:
            raise NotReplayableError(
                f"dead letter {content.id} names no task; `pointsman dead replay --as-new` sends the "
                f"request of workflow {workflow} again"
            )
        name = derive_id("replay", content.id)
        control = Control(action="replay", task_id=content.task_id, reason=f"dead letter {content.id}")
        envelope = Envelope(
            id=name,
            type=Control.event_type,
            source=self._source,
            time=self._clock.now(),
            subject=workflow,
            causation_id=content.id,
        )
        subject = self._subjects.control(team, workflow, "replay", self._user, name)
        with suppress(ConflictError):  # the letter was replayed before, so the control exists and acts once
            await publish_with_retry(self._bus, subject, dump(control), encode(envelope), expect=0)
        await self._wait_until_reopened(content, self._subjects.log(team, workflow), name)
        return workflow

    async def _wait_until_reopened(self, content: DeadLetter, log: str, control: str) -> None:
        """Wait until the log has the reopened task, because the letter must not be removed earlier.

        A supervisor that restarts while the log still has only the failed task would write the letter again.

        Raises:
            NotReplayableError: The workflow has ended, or the supervisor has not reopened the task in time.
        """
        with suppress(TimeoutError):
            async with (
                asyncio.timeout(self._reopen_timeout),
                aclosing(as_async_generator(self._bus.follow("log", [log]))) as messages,
            ):
                async for stored in messages:
                    for entry in read_commit(stored).entries:
                        if isinstance(entry, TaskReopened) and entry.event_id == control:
                            return
                        if isinstance(entry, WorkflowEnded):
                            raise NotReplayableError(_has_ended_message(content, entry))
        raise NotReplayableError(
            f"the supervisor has not reopened task {content.task_id} of {content.workflow_id} within "
            f"{self._reopen_timeout:g} s after the request: the supervisor does not run, or the task has not failed; "
            f"dead letter {content.id} remains; check the supervisor and the task, then replay the letter again"
        )

    async def _publish_event(self, letter: DeadLetterEntry) -> str:
        workflow = _workflow(letter.content)
        await self._running_team(letter.content, workflow)
        event_id = derive_id("replay", letter.content.id)
        event = Result if self._subjects.kind_of(letter.content.subject) == "result" else Control
        headers, body = self._with_event_id(letter.content.headers, await self._full_body(letter), event_id, event)
        await publish_with_retry(self._bus, letter.content.subject, body, headers)
        return workflow

    def _with_event_id(
        self, headers: Mapping[str, str], body: bytes, event_id: str, event: type[Event]
    ) -> tuple[dict[str, str], bytes]:
        """Return headers and body of the same event with another id, in the same CloudEvents mode.

        An event without an id becomes a CloudEvent in binary mode. The broker headers (`Nats-...`) of the first publish
        are left out.
        """
        kept = {name: value for name, value in headers.items() if not name.lower().startswith("nats-")}
        lower = {name.lower(): value for name, value in kept.items()}
        if "ce-id" in lower:
            return {name: event_id if name.lower() == "ce-id" else value for name, value in kept.items()}, body
        if read_identity(kept, body).id:
            with suppress(ContractError):
                content = parse_json(body)
                if isinstance(content, dict):
                    return kept, compact_json({**content, "id": event_id})
        envelope = Envelope(id=event_id, type=event.event_type, source=self._source, time=self._clock.now())
        return {**encode(envelope), **kept}, body

    async def _full_body(self, letter: DeadLetterEntry) -> bytes:
        content = letter.content
        if not content.truncated:
            return letter.body
        original = await self._bus.get(stream_of(self._subjects, content.subject), content.sequence or 0)
        if original is None or original.subject != content.subject:
            raise NotReplayableError(
                f"dead letter {content.id} has only the beginning of its event, and message {content.sequence} of "
                f"{content.stream} was removed; publish the original again, or `pointsman dead discard {content.id}`"
            )
        return original.body

    async def _running_team(self, content: DeadLetter, workflow: str) -> str:
        newest = await newest_commit(self._bus, self._subjects, workflow)
        check_not_imported(workflow, newest.imported_from)
        for entry in newest.commit.entries:
            if isinstance(entry, WorkflowEnded):
                raise NotReplayableError(_has_ended_message(content, entry))
        return newest.team


def _unknown_kind(content: DeadLetter) -> str:
    return (
        f"dead letter {content.id} came from {content.subject!r}; only requests, handoffs, results and "
        "controls of this namespace can be replayed; `pointsman dead discard` removes the letter"
    )


def _has_ended_message(content: DeadLetter, end: WorkflowEnded) -> str:
    return (
        f"dead letter {content.id} belongs to workflow {content.workflow_id}, which has ended: {end.outcome.status}; "
        f"`pointsman resume {content.workflow_id}` runs its failed tasks again, `pointsman dead replay {content.id} "
        "--as-new` sends its request again as a new workflow"
    )


def _workflow(content: DeadLetter) -> str:
    if content.workflow_id is None:
        raise NotReplayableError(
            f"dead letter {content.id} from {content.subject!r} names no workflow, so no workflow can be resumed; "
            "`pointsman dead discard` removes the letter"
        )
    return content.workflow_id


def _request_id(content: DeadLetter) -> str:
    return "replay-" + derive_id("replay", content.id)
