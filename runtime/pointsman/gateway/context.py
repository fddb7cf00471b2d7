"""The parts of a running gateway, and the calls that the protocols of the gateway share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Annotated, NamedTuple

from fastapi import Depends, Request
from pydantic import JsonValue

from pointsman.bus.file_store import FileStore
from pointsman.client.client import Client
from pointsman.client.workflow import Workflow
from pointsman.clock import SystemClock
from pointsman.engine.log.reader import read_commit
from pointsman.engine.operations.messages import TellResult
from pointsman.errors import ContractError, NotFoundError, PointsmanError
from pointsman.gateway.a2a.push_store import PushStore
from pointsman.gateway.callers import Caller
from pointsman.gateway.feed import LogFeed, StreamResetError
from pointsman.gateway.hook_config import load_hooks
from pointsman.gateway.keys import KeyCache
from pointsman.gateway.models import WorkflowView
from pointsman.gateway.oidc import TokenVerifier
from pointsman.gateway.problems import ProblemError
from pointsman.gateway.rates import CallerRates
from pointsman.gateway.streams import WorkflowStreams
from pointsman.gateway.views import read_view
from pointsman.ports.bus import StoredMessage
from pointsman.settings import Settings
from pointsman.telemetry import get_logger
from pointsman_schemas.events import Budget, Outcome
from pointsman_schemas.files import File
from pointsman_schemas.ids import derive_id
from pointsman_schemas.log import WorkflowEnded

_FEED_WAIT_S = 60.0  # seconds of one wait for a message of the feed; the wait is repeated
_ENDED = b'"workflow_ended"'
# maximum number of webhook endpoints and secrets that one caller may add in an hour; it is limited, because an endpoint
# that is deleted later still leaves a marker in the bucket
_MAX_CHANGES = 60

__all__ = ["CallerArg", "Context", "ContextArg", "Submitted", "check_metadata", "derived_key"]

_log = get_logger(__name__)


class Submitted(NamedTuple):
    """A workflow whose request was published.

    `known` is True if the request has an idempotency key, because the workflow may then be older than this request.
    """

    workflow: Workflow
    known: bool


class Context:
    """The parts of a running gateway.

    Args:
        client: A connected client of the namespace.
        settings: The settings.
        keys: The API keys.
        verifier: The verifier of bearer tokens; None without an issuer.
        push: The receivers of push notifications of A2A; None without the SDK.
    """

    def __init__(
        self,
        client: Client,
        settings: Settings,
        *,
        keys: KeyCache,
        verifier: TokenVerifier | None = None,
        push: PushStore | None = None,
    ) -> None:
        self.client = client
        self.settings = settings
        self.keys = keys
        self.verifier = verifier
        self.push = push
        self.files = FileStore(
            client.bus, client.subjects.artifacts_bucket, SystemClock(), settings.max_file_bytes
        )  # fmt: skip
        self._changes = CallerRates(3_600.0)
        self.hooks = load_hooks(settings.gateway_hooks)
        self.index = LogFeed(client.bus, client.subjects)
        self.streams = WorkflowStreams(client, self.index)
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Keep keys and index current, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.index.run())
            group.create_task(self.keys.run())

    def charge_change(self, caller: Caller) -> None:
        """Count a new webhook endpoint or secret of a caller.

        The endpoint or secret counts even if it is deleted later, because a deletion leaves a marker in its bucket.

        Args:
            caller: The caller.

        Raises:
            ProblemError: The caller has made too many changes.
        """
        if not caller.operator and (wait := self._changes.spend(caller.name, _MAX_CHANGES)) > 0:
            raise ProblemError(
                429, "too_many_changes", f"{caller.name} may make {_MAX_CHANGES} changes an hour; wait {wait:.0f} s",
                headers={"retry-after": str(max(1, round(wait)))},
            )  # fmt: skip

    def cancel_later(self, caller: Caller, workflow: Workflow) -> None:
        """Cancel a workflow whose client has disconnected. The call returns at once.

        Do nothing if the gateway stops, because the stopping server closes the connections of the remaining clients.

        Args:
            caller: The caller.
            workflow: The workflow.
        """

        async def cancel() -> None:
            try:
                await workflow.cancel("the client has disconnected", actor=caller.name)
            except PointsmanError as error:
                _log.info(
                    "gateway_cancel_failed",
                    workflow=workflow.id,
                    error=str(error),
                    hint="the deadline ends the workflow",
                )

        if self.streams.stopping.is_set():
            return
        task = asyncio.create_task(cancel())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @property
    def ready(self) -> bool:
        """True if the broker is connected and the history of the log has been read."""
        return self.client.bus.connected and self.index.current.is_set()

    async def submit(
        self,
        caller: Caller,
        team: str,
        input: str | Mapping[str, JsonValue],
        *,
        key: str | None = None,
        correlation_id: str | None = None,
        deadline: float | None = None,
        budget: Budget | None = None,
        metadata: Mapping[str, JsonValue] | None = None,
        internal: Mapping[str, JsonValue] | None = None,
        thread: str | None = None,
        files: Sequence[File] = (),
    ) -> Submitted:
        """Publish a request of a caller.

        Args:
            caller: The caller.
            team: The team.
            input: The request.
            key: The idempotency key of the caller. Default: each request is new.
            correlation_id: The caller's own id.
            deadline: Seconds from admission to the deadline.
            budget: Limits of the workflow.
            metadata: Data for the agents.
            internal: Data for the gateway itself, under reserved names.
            thread: A thread of the caller; the request becomes its next turn. Default: none.
            files: Files of the caller that are already stored.

        Returns:
            The workflow.

        Raises:
            ProblemError: The caller may not use the team, a limit is reached, or the metadata use a reserved name.
            ContractError: The request is not valid, or the key belongs to another request.
        """
        check_metadata(metadata or {})
        with self.new_work(caller, team):
            workflow = await self.client.for_user(caller.name).submit(
                team,
                input,
                request_id=key,
                correlation_id=correlation_id,
                deadline=deadline,
                budget=budget,
                metadata={**(metadata or {}), **(internal or {})},
                thread=thread,
                files=files,
            )
            self._count(caller, workflow.id)
        return Submitted(workflow, key is not None)

    async def tell(
        self, caller: Caller, workflow: Workflow, text: str, *, key: str | None = None, timeout: float = 10.0
    ) -> TellResult:
        """Send a message of a caller to a workflow.

        If the workflow is an ended turn of a thread, the message is sent as a request for the next turn.

        Args:
            caller: The caller.
            workflow: A workflow of the caller.
            text: The message.
            key: The idempotency key of the caller. Default: each message is new.
            timeout: The longest wait for a supervisor, in seconds.

        Returns:
            The number of the message, or the workflow of the next turn.

        Raises:
            ProblemError: The message would be a request to a team that the caller may not use.
            CallerLimitError: The message would be a request, and a limit is reached.
        """
        row = self.index.find(workflow.id)
        ended = row is not None and row.ended_at is not None
        with self.new_work(caller, workflow.team) if ended else nullcontext():
            told = await workflow.tell(text, message_id=key, actor=caller.name, timeout=timeout)
            if told.next_turn is not None:
                self._count(caller, told.next_turn)
        return told

    async def resume(self, caller: Caller, workflow: Workflow, reason: str) -> None:
        """Do the failed tasks of an ended workflow again.

        Args:
            caller: The caller.
            workflow: A workflow of the caller.
            reason: The reason.

        Raises:
            ProblemError: The caller may not use the team any more.
            CallerLimitError: A limit is reached.
        """
        with self.new_work(caller, workflow.team):
            await workflow.resume(reason, actor=caller.name)
            # the index counts the workflow as running when the new round is in the log; until then, count it here
            self.index.callers.submitted(caller.name, workflow.id)

    @contextmanager
    def new_work(self, caller: Caller, team: str) -> Iterator[None]:
        """Check the team and the limits of a caller, and count one workflow as running inside the `with` block.

        Args:
            caller: The caller.
            team: The team that works.

        Yields:
            Nothing; begin the work here.

        Raises:
            ProblemError: The caller may not use the team.
            CallerLimitError: A limit is reached.
        """
        caller.require_team(team)
        with self.index.callers.reserved(caller.name, caller.limits):
            yield

    def _count(self, caller: Caller, workflow: str) -> None:
        if self.index.find(workflow) is None:
            self.index.callers.submitted(caller.name, workflow)

    async def outcome(self, submitted: Submitted, timeout: float | None = None) -> Outcome:
        """Wait for the end of a workflow.

        The outcome of a new workflow is read from the feed, because this costs the broker nothing. Also, the feed gets
        the outcome early, with the last commit. The outcome itself is published after this commit.

        Args:
            submitted: The workflow.
            timeout: The longest wait, in seconds; None to wait without a limit.

        Returns:
            The outcome.

        Raises:
            TimeoutError: The workflow did not end in time. The workflow continues.
        """
        workflow = submitted.workflow
        async with asyncio.timeout(timeout):
            if not submitted.known and self.index.current.is_set():
                with self.index.subscribe(workflow.id) as arriving, suppress(StreamResetError):
                    row = self.index.find(workflow.id)
                    while row is None or row.ended_at is None:
                        try:
                            stored = await arriving.next(_FEED_WAIT_S)
                        except TimeoutError:
                            continue
                        if stored is None:
                            break  # the feed dropped messages, so read the outcome from the broker
                        if isinstance(stored, StoredMessage) and _ENDED in stored.body:
                            try:
                                ended = _outcome_of(stored)
                            except ContractError:
                                break  # another release wrote the commit, so read the outcome from the broker
                            if ended is not None:
                                return ended
            return await workflow.outcome()

    async def find(self, caller: Caller, workflow: str) -> Workflow:
        """Find a workflow that the caller may see.

        Args:
            caller: The caller.
            workflow: The workflow.

        Returns:
            The workflow.

        Raises:
            NotFoundError: There is no such workflow, or the workflow belongs to another caller.
            ProblemError: The workflow was imported, so no process acts on the workflow.
        """
        if (row := self.index.find(workflow)) is not None:
            if not (caller.operator or row.caller == caller.name):
                raise NotFoundError(_not_found(workflow))
            if not row.imported:
                return self._workflow(workflow, row.team)
        view = await self.view(caller, workflow)
        if view.status == "imported":
            raise ProblemError(409, "imported_log", f"workflow {workflow} was imported, so it can only be read")
        return self._workflow(workflow, view.team)

    async def view(self, caller: Caller, workflow: str) -> WorkflowView:
        """Read a workflow that the caller may see.

        Args:
            caller: The caller.
            workflow: The workflow.

        Returns:
            The workflow.

        Raises:
            NotFoundError: There is no such workflow, or the workflow belongs to another caller.
        """
        found = await read_view(self.client, workflow)
        if found is None or not (caller.operator or found.caller == caller.name):
            raise NotFoundError(_not_found(workflow))
        return found

    def _workflow(self, id: str, team: str) -> Workflow:
        return Workflow(self.client.bus, self.client.subjects, id, team, source=self.client.source)


def _outcome_of(stored: StoredMessage) -> Outcome | None:
    """Return the outcome in a message of the log; None for a message without the end of a workflow."""
    entries = read_commit(stored).entries
    return next((entry.outcome for entry in entries if isinstance(entry, WorkflowEnded)), None)


def _not_found(workflow: str) -> str:
    return f"you have no workflow {workflow!r}; GET /v1/workflows lists your workflows"


def check_metadata(metadata: Mapping[str, JsonValue]) -> None:
    """Refuse metadata of a caller under a reserved name.

    Args:
        metadata: The metadata.

    Raises:
        ProblemError: A name is reserved.
    """
    reserved = [name for name in metadata if name.startswith("pointsman.")]
    if reserved:
        raise ProblemError(
            422,
            "reserved_metadata",
            f"metadata {reserved[0]!r} is reserved; choose a name that does not begin with `pointsman.`",
        )


def derived_key(*parts: str) -> str:
    """Return an idempotency key made of the parts that identify a request.

    Args:
        *parts: The parts.
    """
    return derive_id("gateway", *parts, length=32)


# These functions are async, because FastAPI runs each dependency that is not async in a thread.


async def _context(request: Request) -> Context:
    context: Context = request.app.state.context
    return context


async def _caller(request: Request) -> Caller:
    caller: Caller = request.state.caller
    return caller


ContextArg = Annotated[Context, Depends(_context)]
CallerArg = Annotated[Caller, Depends(_caller)]
