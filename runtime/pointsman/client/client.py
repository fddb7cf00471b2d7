"""The caller's side: submit a request, follow its workflow, read what any workflow did.

async with pointsman.connect() as client:
    workflow = await client.submit("customer-service", "I was charged twice")
    outcome = await workflow.outcome(timeout=60)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from uuid import uuid4

from pydantic import JsonValue, ValidationError

from pointsman.client.operations import Operations
from pointsman.client.workflow import Workflow, WorkflowEvent, newest_commit_of, read_progress
from pointsman.core.views import trace
from pointsman.engine.log.reader import (
    as_async_generator,
    gather_batched,
    read_commit,
    read_entries,
    read_workflow_started,
)
from pointsman.engine.process.retrying import publish_with_retry
from pointsman.errors import (
    BusUnavailableError,
    ContractError,
    NotFoundError,
    OversizeEventError,
    PermissionDeniedError,
)
from pointsman.ports.bus import Bus, StoredMessage
from pointsman.settings import Settings
from pointsman.telemetry.bus_metrics import bus_observer
from pointsman.telemetry.semconv import publish_request
from pointsman.telemetry.traces import span, tracing_enabled
from pointsman_schemas.envelope import Envelope, decode, encode
from pointsman_schemas.events import Budget, Progress, Request
from pointsman_schemas.ids import caller_id, stable_digest, workflow_id_for
from pointsman_schemas.log import Entry, WorkflowEnded, WorkflowStarted
from pointsman_schemas.strict_json import as_json_value, describe, dump, parse
from pointsman_schemas.subjects import Subjects

if TYPE_CHECKING:
    from pointsman.engine.operations.queued_requests import QueuedRequest

__all__ = ["Client", "Workflow", "WorkflowEvent", "WorkflowSummary", "connect"]

QUEUED_STATUS, _CANCEL_REQUESTED_STATUS = "waiting for admission", "asked to end"
_LIST_WINDOW = 20
"""Messages of the log stream that `list` first looks at for each workflow asked for: one of three tasks writes about as
many. Four times as many are looked at each further time."""
_SEARCH_WINDOW = (
    500  # workflows among which the beginning of an id is looked for: what a person still has on the screen
)


@dataclass(frozen=True, slots=True)
class WorkflowSummary:
    """One line of `Client.list`. `status` is `running`, `waiting for approval` or the outcome's; `ended_at` is None
    while it runs. Of a request that no supervisor has taken it is `waiting for admission`, or `asked to end` when it is
    cancelled, and `started_at` is when it was published."""

    id: str
    team: str
    status: str
    started_at: datetime
    ended_at: datetime | None
    input: str | dict[str, JsonValue]

    @property
    def admitted(self) -> bool:
        """Whether a supervisor has taken it."""
        return self.status not in (QUEUED_STATUS, _CANCEL_REQUESTED_STATUS)


@asynccontextmanager
async def connect(
    url: str | None = None, *, namespace: str | None = None, settings: Settings | None = None, create: bool = True
) -> AsyncIterator[Client]:
    """A client of the broker at `url`; what is not given comes from `settings`, else from the environment.

    A namespace that is not there is made, unless `create` is false: then somebody has mistyped it.

    Raises:
        NotFoundError: there is no such namespace, and it is not to be made.
        BusUnavailableError: nobody answers there.
        ConfigurationError: a setting is malformed, or the broker's streams do not fit.
    """
    from pointsman.bus.jetstream import bus as jetstream

    given = settings.model_dump(exclude_unset=True) if settings is not None else {}
    options = {name: value for name, value in (("url", url), ("namespace", namespace)) if value is not None}
    chosen = Settings.load(**{**given, **options})
    bus = await jetstream.connect(chosen, name="pointsman-client", wait=chosen.request_timeout, watcher=bus_observer())
    try:
        await bus.set_up(create=create)
        yield Client(bus, namespace=chosen.namespace)
    finally:
        await bus.close()


class Client:
    """Everything a caller or an operator can ask of one namespace. Every call raises `BusUnavailableError` when the
    broker does not answer."""

    def __init__(self, bus: Bus, *, namespace: str = "pointsman") -> None:
        self.bus = bus
        self.subjects = Subjects(namespace)
        self.source = self.subjects.source("client", "python")
        self.operations = Operations(bus, self.subjects)
        """The calls of those who operate the namespace: approvals, dead letters, agents, circuits, archives."""

    async def submit(
        self,
        team: str,
        input: str | Mapping[str, JsonValue],
        *,
        request_id: str | None = None,
        correlation_id: str | None = None,
        deadline: float | None = None,
        budget: Budget | None = None,
        metadata: Mapping[str, JsonValue] | None = None,
    ) -> Workflow:
        """Start a workflow in `team` and return it at once; its id is known before anybody has picked it up.

        The same request under the same `request_id` is the same workflow however often it is sent. `deadline` is in
        seconds from admission.

        Raises:
            ContractError: the input is empty, not strict JSON, or a value is out of range; or another request has begun
                a workflow under the `request_id`. Nothing was sent.
            OversizeEventError: the request is larger than an event may be (`POINTSMAN_MAX_BODY`). Nothing was sent.
            PublishOutcomeUnknownError: the broker was silent, repeatedly. Submit again with the same `request_id`.
        """
        subject = self.subjects.request(team)
        try:
            chosen_id = uuid4().hex if request_id is None else caller_id(request_id, "request id")
        except ContractError as error:
            raise ContractError(f"{error}; nothing was sent") from None
        try:
            request = Request.model_validate(
                {
                    "input": as_json_value(input, "input"),
                    "deadline": deadline,
                    "budget": budget,
                    "metadata": as_json_value(metadata or {}, "metadata"),
                    "correlation_id": correlation_id,
                }
            )
        except ValidationError as error:
            raise ContractError(f"the request does not fit: {describe(error)}; nothing was sent") from None
        workflow, body = workflow_id_for(subject, chosen_id, self.source), dump(request)
        digest = stable_digest(body)
        if request_id is not None:
            await self._check_request_id_free(team, workflow, request_id, digest)
        name, attributes = (
            publish_request(
                self.subjects.namespace,
                team,
                message_id=chosen_id,
                source=self.source,
                correlation_id=correlation_id or chosen_id,
                server=self.bus.server,
            )
            if tracing_enabled()
            else ("", None)
        )
        with span(name, kind="producer", attributes=attributes) as publishing:
            traceparent = publishing.context.traceparent if publishing.context else None
            tracestate = publishing.context.tracestate if publishing.context else None
            envelope = Envelope(
                id=chosen_id,
                type=Request.event_type,
                source=self.source,
                time=_now(),
                subject=workflow,
                correlation_id=correlation_id or chosen_id,
                traceparent=traceparent,
                tracestate=tracestate,
                origin_traceparent=traceparent,
            )
            try:
                # The broker drops repetitions over the whole stream, and in silence: under the caller's id alone, two
                # teams that are asked under the same id would be one message, and so would two requests.
                await publish_with_retry(self.bus, subject, body, encode(envelope), message_id=f"{workflow}-{digest}")
            except OversizeEventError as error:
                raise OversizeEventError(f"the request is too large: {error}") from None
        return Workflow(self.bus, self.subjects, workflow, team, source=self.source)

    async def _check_request_id_free(self, team: str, workflow: str, request_id: str, digest: str) -> None:
        """Raise `ContractError` where another request is known to have begun `workflow`."""
        try:
            began = await read_workflow_started(self.bus, self.subjects, self.subjects.log(team, workflow))
        except (NotFoundError, BusUnavailableError, PermissionDeniedError):  # the supervisor sees it
            return
        if began.request_digest and began.request_digest != digest:
            raise ContractError(
                f"the request id {request_id!r} is taken: {workflow} began under it with another request; nothing was "
                f"sent; `pointsman show {workflow}` tells what came of that one, and a new id is for a new request"
            )

    async def workflow_from_sequence(self, sequence: int) -> Workflow:
        """The workflow of a request that was published as a message, by the sequence its publish was answered with.

        Raises `NotFoundError` when there is no request at `sequence`.
        """
        from pointsman.engine.log.requests import workflow_of_request

        stored = await self.bus.get("work", sequence)
        if stored is None or not stored.subject.startswith(self.subjects.requests.removesuffix("*")):
            raise NotFoundError(
                f"no request has the sequence {sequence}; expected what the publish of one was answered with"
            )
        return Workflow(
            self.bus, self.subjects, workflow_of_request(stored), stored.subject.rpartition(".")[2], source=self.source
        )

    async def workflow(self, workflow: str) -> Workflow:
        """The workflow of that id, which may still wait for its admission. Raises `NotFoundError` when there is
        none."""
        team, _ = await newest_commit_of(self.bus, self.subjects, workflow)
        return Workflow(self.bus, self.subjects, workflow, team, source=self.source)

    async def queued_request(self, workflow: str) -> WorkflowSummary | None:
        """A workflow that its team has yet to admit, whose request is among the last that were published; else None."""
        from pointsman.engine.operations.queued_requests import find_queued_request

        found = await find_queued_request(self.bus, self.subjects, workflow)
        return None if found is None else _queued_summary(found)

    async def list(self, team: str | None = None, *, limit: int = 20) -> Sequence[WorkflowSummary]:
        """The workflows that were active last, of `team` or of all, newest first, with those of `unadmitted`.

        Reads the log backwards in growing windows, so the cost follows `limit` and not the length of the log.
        """
        unadmitted = await self.queued_requests(team, limit=limit)
        newest = await self._newest_messages(self.subjects.team_logs(team), limit)
        summaries = await gather_batched(self._summary(stored) for stored in newest)
        found = list(zip((stored.at for stored in newest), summaries, strict=True))
        admitted = {summary.id for _, summary in found}
        found += [(each.started_at, each) for each in unadmitted if each.id not in admitted]
        found.sort(key=lambda each: each[0], reverse=True)
        return [summary for _, summary in found[:limit]]

    async def queued_requests(self, team: str | None = None, *, limit: int | None = None) -> Sequence[WorkflowSummary]:
        """The requests that no supervisor has taken yet, of `team` or of all: there is none, or it has as many
        workflows as it may. Oldest first in each team, the newest `limit` of each; only what was published lately is
        looked at."""
        from pointsman.engine.operations.queued_requests import list_queued_requests

        return [_queued_summary(each) for each in await list_queued_requests(self.bus, self.subjects, team, limit)]

    async def find_by_prefix(self, text: str) -> Sequence[str]:
        """The ids that begin with `text`, of the workflows that were active last and of those that wait, newest first.

        No subject can be asked for by its beginning, so this reads back as `list` does.
        """
        logs = await self._newest_messages(self.subjects.team_logs(), _SEARCH_WINDOW)
        ids = [stored.subject.rpartition(".")[2] for stored in logs] + [
            each.id for each in await self.queued_requests()
        ]
        return [each for each in dict.fromkeys(ids) if each.startswith(text)]

    async def entries(self, workflow: str) -> Sequence[Entry]:
        """The whole log of a workflow, in order. Raises `NotFoundError`."""
        return await read_entries(self.bus, self.subjects, workflow)

    async def progress(self, workflow: str) -> Sequence[Progress]:
        """What the agents of a workflow reported so far, in order; empty for an unknown workflow."""
        found = [
            read_progress(stored) async for stored in self.bus.read("log", self.subjects.workflow_events(workflow))
        ]
        return [report for report in found if report is not None]

    async def trace(self, workflow: str) -> trace.TraceNode:
        """The trace of a workflow and of those its teams started for it, built from their logs. Raises
        `NotFoundError`."""
        entries, progress = await asyncio.gather(self.entries(workflow), self.progress(workflow))
        children: dict[str, trace.TraceNode] = {}
        for child in trace.child_workflows(entries):
            with suppress(NotFoundError):  # its team has not taken it yet
                children[child] = await self.trace(child)
        return trace.build_trace(entries, progress, children)

    async def _newest_messages(self, subject: str, limit: int) -> Sequence[StoredMessage]:
        """The newest message of the `limit` subjects that were written last."""
        last = await self.bus.last("log", subject)
        newest: dict[str, StoredMessage] = {}
        if last is None:
            return ()
        above, window = last.sequence + 1, limit * _LIST_WINDOW
        while above > 1 and len(newest) < limit:
            lower = max(0, above - 1 - window)
            found: dict[str, StoredMessage] = {}
            async with aclosing(as_async_generator(self.bus.read("log", subject, after=lower))) as messages:
                async for stored in messages:
                    if stored.sequence >= above:
                        break
                    found[stored.subject] = stored
            newest = {**found, **newest}
            above, window = lower + 1, window * 4
        return sorted(newest.values(), key=lambda stored: stored.sequence, reverse=True)[:limit]

    async def _summary(self, stored: StoredMessage) -> WorkflowSummary:
        newest = read_commit(stored)
        started = next((entry for entry in newest.entries if isinstance(entry, WorkflowStarted)), None)
        if started is None:
            started = await read_workflow_started(self.bus, self.subjects, stored.subject)
        ended = next((entry for entry in newest.entries if isinstance(entry, WorkflowEnded)), None)
        return WorkflowSummary(
            id=started.workflow_id,
            team=started.team,
            status=ended.outcome.status if ended else "waiting for approval" if newest.pending_approvals else "running",
            started_at=started.at,
            ended_at=ended.at if ended else None,
            input=started.input,
        )


def _queued_summary(of: QueuedRequest) -> WorkflowSummary:
    return WorkflowSummary(
        id=of.workflow,
        team=of.team,
        status=_CANCEL_REQUESTED_STATUS if of.cancelled else QUEUED_STATUS,
        started_at=of.request.at,
        ended_at=None,
        input=_request_input(of.request),
    )


def _request_input(request: StoredMessage) -> str | dict[str, JsonValue]:
    """What is asked for; nothing where it cannot be read."""
    try:
        return parse(Request, decode(request.headers, request.body)[1]).input
    except ContractError:
        return ""


def _now() -> datetime:
    return datetime.now(UTC)
