"""Client for callers. Submit a request, follow its workflow, and read the log of any workflow.

async with pointsman.connect() as client:
    workflow = await client.submit("customer-service", "I was charged twice")
    outcome = await workflow.outcome(timeout=60)
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Collection,
    Container,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from uuid import uuid4

from pydantic import JsonValue, ValidationError

from pointsman.authoring.files import FileContent
from pointsman.bus.file_store import FileStore
from pointsman.client.batch import BatchInput, BatchRow, run_batch
from pointsman.client.files import GivenFile, WorkflowFile, list_files, save_files, store_file, store_files
from pointsman.client.operations import Operations, TellResult
from pointsman.client.schedules import Schedules
from pointsman.client.summaries import (
    QUEUED_STATUS,
    WORKFLOW_STATUSES,
    WorkflowDetails,
    WorkflowSummary,
    read_details,
    summarize_queued,
)
from pointsman.client.thread import Thread
from pointsman.client.workflow import Workflow, WorkflowEvent, find_workflow, read_progress
from pointsman.client.workflow_list import Selection, find_by_prefix, list_queued, list_workflows
from pointsman.clock import SystemClock
from pointsman.core.views import trace
from pointsman.engine.log.reader import (
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
from pointsman.ports.bus import Bus
from pointsman.ports.clock import Clock
from pointsman.settings import Settings
from pointsman.telemetry.bus_metrics import bus_observer
from pointsman.telemetry.semconv import publish_request
from pointsman.telemetry.traces import span, tracing_enabled
from pointsman_schemas.envelope import Envelope, encode
from pointsman_schemas.events import Budget, Progress, Request
from pointsman_schemas.files import MAX_FILE_BYTES, SHARED_OWNER, File
from pointsman_schemas.ids import caller_id, stable_digest, workflow_id_for
from pointsman_schemas.log import Entry
from pointsman_schemas.strict_json import as_json_value, describe, dump
from pointsman_schemas.subjects import Subjects
from pointsman_schemas.unknown_fields import find_unknown_fields

__all__ = ["QUEUED_STATUS", "WORKFLOW_STATUSES", "Client", "Workflow", "WorkflowEvent", "WorkflowSummary", "connect"]


@asynccontextmanager
async def connect(
    url: str | None = None, *, namespace: str | None = None, settings: Settings | None = None, create: bool = True
) -> AsyncIterator[Client]:
    """Connect a client to a broker.

    Args:
        url: The broker's URL. Default: the value in `settings`.
        namespace: The namespace. Default: the value in `settings`.
        settings: The settings. Default: the settings of the environment.
        create: If the namespace does not exist: True to create its streams, False to raise an error.

    Yields:
        The client, which is connected until the context ends.

    Raises:
        NotFoundError: the namespace does not exist, and `create` is False.
        BusUnavailableError: no broker answers at the URL.
        ConfigurationError: a setting is malformed, or an existing stream has a configuration that Pointsman cannot use.
    """
    from pointsman.bus.jetstream.bus import JetStreamBus
    from pointsman.bus.jetstream.login import user_name

    given = settings.model_dump(exclude_unset=True) if settings is not None else {}
    options = {name: value for name, value in (("url", url), ("namespace", namespace)) if value is not None}
    chosen = Settings.load(**{**given, **options})
    bus = JetStreamBus(chosen, name="pointsman-client", observer=bus_observer(), leader_reads=False)
    # If the broker refuses a request, an error is raised to the caller, so the refusal needs no error in the log.
    with bus.optional_requests(""):
        await bus.open(chosen.request_timeout)
    try:
        with bus.optional_requests(""):
            await bus.set_up(create=create)
        yield Client(bus, namespace=chosen.namespace, user=user_name(chosen), max_file_bytes=chosen.max_file_bytes)
    finally:
        await bus.close()


class Client:
    """Client of one namespace, for callers. Make a client with `connect`.

    Every call raises `BusUnavailableError` if the broker does not answer.

    Args:
        bus: The bus, after its setup.
        namespace: The namespace.
        user: The name of the user, in the subjects of requests and controls; default: `anonymous`.
        max_file_bytes: Largest size of a file that this client stores, in bytes.
        clock: The clock for the times of schedules. Default: the clock of the system.
    """

    def __init__(
        self,
        bus: Bus,
        *,
        namespace: str = "pointsman",
        user: str = "anonymous",
        max_file_bytes: int = MAX_FILE_BYTES,
        clock: Clock | None = None,
    ) -> None:
        self.bus = bus
        self.user = user
        self.subjects = Subjects(namespace)
        self._max_file_bytes = max_file_bytes
        self._clock = clock or SystemClock()
        self._files = FileStore(bus, self.subjects.artifacts_bucket, self._clock, max_file_bytes)
        self.source = self.subjects.source("client", "python")
        self.operations = Operations(bus, self.subjects, user=user)
        """The operations on the namespace: questions, dead letters, agents, circuits, archives."""
        self.schedules = Schedules(bus, self.subjects, user=user, clock=self._clock, max_file_bytes=max_file_bytes)
        """The schedules. A supervisor sends the request of a schedule at the times of a cron expression, or once."""

    def for_user(self, user: str) -> Client:
        """Return a client on this bus whose requests and controls contain the name of a different user.

        Args:
            user: The name of the user. The broker must allow this connection to publish for the user.

        Returns:
            The client.
        """
        return Client(
            self.bus,
            namespace=self.subjects.namespace,
            user=user,
            max_file_bytes=self._max_file_bytes,
            clock=self._clock,
        )

    def workflow_id(self, team: str, request_id: str) -> str:
        """Return the id of the workflow that a request of this client starts.

        Args:
            team: The team of the request.
            request_id: The id of the request.

        Returns:
            The id of the workflow.
        """
        return workflow_id_for(self.subjects.request(team, self.user), request_id, self.source)

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
        files: Sequence[GivenFile] = (),
        thread: str | None = None,
    ) -> Workflow:
        """Publish a request, and return its workflow at once. The workflow's id is computed from the request's id.

        Args:
            team: The team that gets the request.
            input: The request: a text or an object.
            request_id: The id of the request. If a request is sent again with its id, no further workflow starts. By
                default, each request has a new id.
            correlation_id: The caller's own id, which all events of the workflow contain. Default: the request's id.
            deadline: The time limit of the workflow, in seconds from admission. Default: the team's deadline.
            budget: Limits of calls, tokens and cost, in addition to the team's limits.
            metadata: Data for the agents, as JSON.
            files: Files for the agents: paths, names with content, or stored files. New files are stored before the
                request is sent.
            thread: The id of a thread, if the request is the next turn of this thread. Default: no thread.

        Returns:
            The workflow.

        Raises:
            ContractError: the input is empty or not strict JSON, a value is out of range, or a different request with
                this `request_id` started a workflow earlier. Nothing was sent.
            OversizeEventError: the request is larger than the limit of an event (`POINTSMAN_MAX_BODY`). Nothing was
                sent.
            PublishOutcomeUnknownError: the broker did not answer several tries, so the request might be stored. Submit
                again with the same `request_id`.
        """
        subject = self.subjects.request(team, self.user)
        try:
            chosen_id = uuid4().hex if request_id is None else caller_id(request_id, "request id")
        except ContractError as error:
            raise ContractError(f"{error}; nothing was sent") from None
        workflow = self.workflow_id(team, chosen_id)
        given = {
            "input": as_json_value(input, "input"),
            "deadline": deadline,
            "budget": budget,
            "metadata": as_json_value(metadata or {}, "metadata"),
            "files": await store_files(self._files, files, workflow) if files else (),
            "correlation_id": correlation_id,
            "thread": thread,
        }
        if unknown := find_unknown_fields(Request, given):
            raise ContractError(f"the request's {unknown[0].path} {unknown[0].message}; nothing was sent")
        try:
            request = Request.model_validate(given)
        except ValidationError as error:
            raise ContractError(f"the request does not fit: {describe(error)}; nothing was sent") from None
        body = dump(request)
        digest = stable_digest(body)
        if request_id is not None:
            await self._check_request_id_free(team, workflow, request_id, digest)
        name, attributes = (
            publish_request(
                self.subjects.namespace,
                team,
                self.user,
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
                await publish_with_retry(self.bus, subject, body, encode(envelope))
            except OversizeEventError as error:
                raise OversizeEventError(f"the request is too large: {error}") from None
        return Workflow(self.bus, self.subjects, workflow, team, source=self.source, user=self.user)

    async def files(self, workflow: str) -> Sequence[WorkflowFile]:
        """List the files of a workflow, which are the files of its request and the files that its tasks returned.

        Args:
            workflow: The workflow's id.

        Returns:
            The files, in the order of the log.

        Raises:
            NotFoundError: the workflow has no log.
        """
        return list_files(await self.entries(workflow))

    def read_file(self, file: File) -> AsyncGenerator[bytes, None]:
        """Read a file in pieces. The whole file is never in memory.

        Args:
            file: The file.

        Returns:
            The pieces. After the last piece, `BodyLostError` is raised if the size or the digest is wrong.
        """
        return self._files.read(file)

    async def save_files(self, files: Sequence[WorkflowFile], folder: Path | str) -> Sequence[Path]:
        """Save files in a folder. The digest of each file is checked, and no existing file is replaced.

        Args:
            files: The files, as `files` lists them.
            folder: The folder. A missing folder is created.

        Returns:
            The paths, in the order of the files.

        Raises:
            BodyLostError: a file was removed, or is damaged.
            ConfigurationError: the folder cannot be written.
        """
        return await save_files(self._files, files, Path(folder))

    async def store_file(
        self, name: str, content: FileContent, *, media_type: str = "", owner: str = SHARED_OWNER
    ) -> File:
        """Store a file for one or more requests.

        A file without an owner expires, so send the requests that use the file within a day.

        Args:
            name: The name of the file, without a folder.
            content: Bytes, a path, an open binary file, or pieces of bytes.
            media_type: The media type. Default: guessed from the ending of the name.
            owner: The id of the workflow to which the file belongs. `workflow_id` computes this id before the request
                is sent. The file is deleted with this workflow. By default, the file belongs to no workflow.

        Returns:
            The reference to the file, for `submit`.

        Raises:
            ContractError: the name is not valid, or the file is too large.
        """
        return await store_file(self._files, name, content, owner, media_type)

    async def batch(
        self,
        team: str,
        inputs: Iterable[BatchInput] | AsyncIterable[BatchInput],
        *,
        batch_id: str | None = None,
        concurrency: int = 10,
        skip: Container[int] = frozenset(),
        deadline: float | None = None,
        budget: Budget | None = None,
    ) -> AsyncGenerator[BatchRow, None]:
        """Send each input as a separate request, and yield each row when its workflow has ended.

        Rows come in the order in which they end. An input is read only when fewer than `concurrency` workflows run, and
        a yielded row is not stored. So the memory does not grow with the number of rows. If you leave the loop, running
        workflows continue. To continue the batch, call this method again with the same inputs and the same `batch_id`.
        This call waits for the running workflows, and does no row twice.

        Args:
            team: The team that gets the requests.
            inputs: The requests, as an iterable or an asynchronous iterable. Each request is a text or an object.
            batch_id: The id of the batch. Default: a new id. The id of each request consists of this id and the number
                of its row, from 1.
            concurrency: The largest number of workflows at a time.
            skip: Numbers of rows that are read but not sent, because their results are known.
            deadline: The time limit of each workflow, in seconds. Default: the team's deadline.
            budget: Limits of each workflow, in addition to the team's limits.

        Yields:
            The rows. A row that could not be sent has an `error`, and the other rows continue.

        Raises:
            ValueError: The concurrency is below 1.
            ContractError: The name of the team is not valid.
        """
        rows = run_batch(
            self,
            team,
            inputs,
            batch_id=batch_id or uuid4().hex,
            concurrency=concurrency,
            skip=skip,
            deadline=deadline,
            budget=budget,
        )
        async with aclosing(rows):
            async for row in rows:
                yield row

    def thread(self, team: str, id: str | None = None) -> Thread:
        """Return a thread of this caller. A thread is a conversation with a team, and each turn is a workflow.

        Args:
            team: The team.
            id: The id of a thread to continue. By default, the first turn starts a new thread.

        Returns:
            The thread.
        """
        chosen = uuid4().hex if id is None else id
        return Thread(partial(self.submit, team, thread=chosen), self.operations, team, chosen, caller=self.user)

    async def _check_request_id_free(self, team: str, workflow: str, request_id: str, digest: str) -> None:
        """Raise `ContractError` if the log shows that a different request started `workflow`."""
        try:
            with self.bus.optional_requests(""):
                began = await read_workflow_started(self.bus, self.subjects, self.subjects.log(team, workflow))
        except (NotFoundError, BusUnavailableError, PermissionDeniedError):
            return  # without this check, the error is only reported later, because the supervisor checks the id, too
        if began.request_digest and began.request_digest != digest:
            raise ContractError(
                f"the request id {request_id!r} is taken: a different request with this id started {workflow}; nothing "
                f"was sent; `pointsman show {workflow}` shows that workflow; give the new request a new id"
            )

    async def workflow_from_sequence(self, sequence: int) -> Workflow:
        """Find the workflow of a request that another program published.

        Args:
            sequence: The sequence number of the request in its stream, from the broker's answer to the publish.

        Returns:
            The workflow.

        Raises:
            NotFoundError: there is no request at `sequence`.
        """
        from pointsman.engine.log.requests import workflow_of_request

        stored = await self.bus.get("requests", sequence)
        if stored is None:
            raise NotFoundError(
                f"no request has the sequence {sequence}; expected the sequence in the answer to a request's publish"
            )
        return Workflow(
            self.bus,
            self.subjects,
            workflow_of_request(stored),
            stored.subject.split(".")[2],
            source=self.source,
            user=self.user,
        )

    async def workflow(self, workflow: str, team: str | None = None) -> Workflow:
        """Find a workflow. It might still wait for admission.

        Args:
            workflow: The workflow's id.
            team: The workflow's team. If it is given, nothing is read, so the caller needs no right to read logs.

        Returns:
            The workflow.

        Raises:
            NotFoundError: the namespace has no workflow of this id.
        """
        if team is not None:
            return Workflow(self.bus, self.subjects, workflow, team, source=self.source, user=self.user)
        found = await find_workflow(self.bus, self.subjects, workflow)
        return Workflow(
            self.bus,
            self.subjects,
            workflow,
            found.team,
            source=self.source,
            user=self.user,
            imported_from=found.imported_from,
            round=found.commit.round if found.commit else 1,
        )

    async def tell(
        self, workflow: str, text: str, *, message_id: str | None = None, timeout: float = 10.0
    ) -> TellResult:
        """Send a message to a workflow. See `Operations.tell`.

        Args:
            workflow: The workflow's id.
            text: The message, of at most 4,000 characters.
            message_id: The id of the message. A second message with this id has no effect. Default: a new id.
            timeout: The longest wait for a supervisor, in seconds.

        Returns:
            The number of the message, or the workflow of the next turn. Both are None if no supervisor has read the
            message in time.
        """
        return await self.operations.tell(workflow, text, message_id=message_id, timeout=timeout)

    async def queued_request(self, workflow: str) -> WorkflowSummary | None:
        """Find a request that waits for admission.

        Args:
            workflow: The id of the workflow that the request will start.

        Returns:
            A summary; None if the request does not wait or is not among the newest messages of the stream.
        """
        from pointsman.engine.operations.queued_requests import find_queued_request

        found = await find_queued_request(self.bus, self.subjects, workflow)
        return None if found is None else summarize_queued(found)

    async def details(self, workflow: str) -> WorkflowDetails | None:
        """Read the present state of a workflow. If its request waits for admission, read the state of the request.

        Args:
            workflow: The workflow's id.

        Returns:
            The summary, the outcome and the open questions; None if there is no such workflow.
        """
        return await read_details(self.bus, self.subjects, workflow)

    async def list(
        self,
        team: str | None = None,
        *,
        status: Collection[str] = (),
        since: datetime | None = None,
        until: datetime | None = None,
        correlation_id: str | None = None,
        limit: int = 20,
    ) -> Sequence[WorkflowSummary]:
        """List the most recently active workflows, and the requests that wait for admission.

        The log stream is read backwards in growing windows until `limit` workflows match. So the cost usually depends
        on `limit`, and not on the length of the stream. If fewer than `limit` workflows match, the stream is read back
        to `since`, or to its start.

        Args:
            team: Only workflows of this team.
            status: Only workflows with one of these statuses (see `WORKFLOW_STATUSES`); empty means all.
            since: Only workflows that started at this time or later.
            until: Only workflows that started before this time.
            correlation_id: Only workflows with this correlation id.
            limit: The largest number of workflows.

        Returns:
            The workflows, most recently active first.
        """
        selection = Selection(status, since, until, correlation_id)
        return await list_workflows(self.bus, self.subjects, team, selection, limit)

    async def queued_requests(self, team: str | None = None, *, limit: int | None = None) -> Sequence[WorkflowSummary]:
        """List the requests that wait for admission.

        They wait because no supervisor of the team runs, or because its supervisors have no free slot. Only the newest
        messages of the stream are read.

        Args:
            team: Only requests to this team.
            limit: The largest number of requests of each team; None means no limit.

        Returns:
            The newest requests of each team. They are grouped by team, and the oldest comes first in each group.
        """
        return await list_queued(self.bus, self.subjects, team, limit)

    async def find_by_prefix(self, text: str) -> Sequence[str]:
        """Find recently active workflows and queued requests by the beginning of their id.

        The log stream is read backwards as in `list`, because NATS has no query for the beginning of a token.

        Args:
            text: The beginning of the id.

        Returns:
            The ids, newest first.
        """
        return await find_by_prefix(self.bus, self.subjects, text)

    async def entries(self, workflow: str) -> Sequence[Entry]:
        """Read the whole log of a workflow.

        Args:
            workflow: The workflow's id.

        Returns:
            All entries, in order.

        Raises:
            NotFoundError: the workflow has no log.
        """
        return await read_entries(self.bus, self.subjects, workflow)

    async def progress(self, workflow: str, team: str | None = None) -> Sequence[Progress]:
        """Read the reports of a workflow's agents.

        Args:
            workflow: The workflow's id.
            team: The workflow's team. It is required if the caller may read only the events of its teams.

        Returns:
            The reports so far, in order; empty for an unknown workflow.
        """
        found = [
            read_progress(stored)
            async for stored in self.bus.read("results", self.subjects.workflow_events(workflow, team))
        ]
        return [report for report in found if report is not None]

    async def trace(self, workflow: str) -> trace.TraceNode:
        """Build the trace of a workflow and of its child workflows from their logs.

        Args:
            workflow: The workflow's id.

        Returns:
            The root of the trace.

        Raises:
            NotFoundError: the workflow has no log.
        """
        entries, progress = await asyncio.gather(self.entries(workflow), self.progress(workflow))
        children: dict[str, trace.TraceNode] = {}
        for child in trace.child_workflows(entries):
            with suppress(NotFoundError):  # a child has no log until its team admits the handoff
                children[child] = await self.trace(child)
        return trace.build_trace(entries, progress, children)


def _now() -> datetime:
    return datetime.now(UTC)
