"""Read logs: the entries, the newest commit and the start of a workflow. Wait for a message."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing, suppress
from itertools import islice
from typing import NamedTuple, TypeVar

from pointsman.errors import BusUnavailableError, ContractError, NotFoundError, PeerError, UnknownEventTypeError
from pointsman.ports.bus import Bus, StoredMessage, StreamKind
from pointsman_schemas.envelope import decode
from pointsman_schemas.events import Outcome
from pointsman_schemas.ids import outcome_round
from pointsman_schemas.log import Commit, Entry, WorkflowEnded, WorkflowStarted
from pointsman_schemas.strict_json import parse
from pointsman_schemas.subjects import Subjects

__all__ = [
    "IMPORTED_HEADER",
    "ImportedLogError",
    "NewestCommit",
    "as_async_generator",
    "check_not_imported",
    "follow_workflow",
    "gather_batched",
    "imported_from",
    "is_imported",
    "is_outcome",
    "newest_commit",
    "read_commit",
    "read_entries",
    "read_workflow_started",
    "round_of_outcome",
    "team_of",
    "wait_for_message",
]

T = TypeVar("T")


class ImportedLogError(PeerError):
    """The log was imported for reading only. No process acts on the log."""

    kind = "imported_log"


class NewestCommit(NamedTuple):
    """The newest commit of a workflow, and its team. `imported_from` is None for a log that was not imported."""

    team: str
    commit: Commit
    imported_from: str | None


IMPORTED_HEADER = "Pointsman-Imported"
"""The header of imported messages. Its value is the namespace from which they were exported."""
_MAX_CONCURRENT = 50  # number of requests to the broker at the same time, which is enough to hide the round trip
_RECHECK_INTERVAL_S = 5.0
"""Seconds after which a waiting call reads the stream again. The call uses a plain subscription, which needs no
consumer at the broker, but misses a message that is published while the connection is down."""


def read_commit(stored: StoredMessage) -> Commit:
    """Return the commit of a log message.

    Raises:
        UnknownEventTypeError: The message has a type or version that this release cannot read.
        UndecodableEventError: Headers or body cannot be read.
    """
    envelope, body = decode(stored.headers, stored.body)
    if envelope is not None and envelope.type != Commit.event_type:
        raise UnknownEventTypeError(
            f"message {stored.sequence} on {stored.subject} has type {envelope.type!r}; this release reads "
            f"{Commit.event_type!r}; use the release of Pointsman that wrote the message"
        )
    return parse(Commit, body)


def imported_from(stored: StoredMessage) -> str | None:
    """Return the namespace from which a message was imported; None for a message of this namespace."""
    return next((value for name, value in stored.headers.items() if name.lower() == IMPORTED_HEADER.lower()), None)


def is_imported(stored: StoredMessage) -> bool:
    """Return True if the message was imported for reading only. No process acts on an imported message."""
    return imported_from(stored) is not None


def check_not_imported(workflow: str, namespace: str | None) -> None:
    """Raise `ImportedLogError` if the workflow was imported from `namespace`."""
    if namespace is not None:
        raise ImportedLogError(
            f"workflow {workflow} was imported from the namespace {namespace!r} for reading only: no supervisor acts "
            f"on {workflow}, and nothing was sent"
        )


def is_outcome(stored: StoredMessage) -> bool:
    """Return True if a message on an outcome subject is the outcome of the workflow that the subject names.

    The check is needed: until the workflow ends, any client with the right to publish in the namespace can store a
    different message on this subject. The check is fast, because only the headers are read.
    """
    headers, workflow = stored.headers, stored.subject.rpartition(".")[2]
    return headers.get("ce-type") == Outcome.event_type and headers.get("ce-subject") == workflow


def round_of_outcome(stored: StoredMessage) -> int:
    """Return the number of the round that a stored outcome ends. Only the headers are read."""
    return outcome_round(stored.subject.rpartition(".")[2], stored.headers.get("ce-id", ""))


async def read_entries(bus: Bus, subjects: Subjects, workflow: str) -> tuple[Entry, ...]:
    """Return every entry of the workflow's log, in order.

    Raises:
        NotFoundError: The workflow has no log.
    """
    entries = [
        entry
        async for stored in bus.read("log", subjects.workflow_log(workflow))
        for entry in read_commit(stored).entries
    ]
    if not entries:
        raise NotFoundError(_no_log_message(subjects, workflow))
    return tuple(entries)


async def newest_commit(bus: Bus, subjects: Subjects, workflow: str) -> NewestCommit:
    """Return the newest commit of a workflow's log.

    Raises:
        NotFoundError: The workflow has no log.
    """
    stored = await bus.last("log", subjects.workflow_log(workflow))
    if stored is None:
        raise NotFoundError(_no_log_message(subjects, workflow))
    return NewestCommit(team_of(stored.subject), read_commit(stored), imported_from(stored))


async def read_workflow_started(bus: Bus, subjects: Subjects, log: str) -> WorkflowStarted:
    """Return the first entry of the log on the subject `log`.

    Raises:
        NotFoundError: The log does not exist, or its beginning was removed.
    """
    async with aclosing(as_async_generator(bus.read("log", log))) as messages:
        async for stored in messages:
            first = read_commit(stored).entries[0]
            if isinstance(first, WorkflowStarted):
                return first
            break
    raise NotFoundError(_no_log_message(subjects, log.split(".")[-1]))


async def wait_for_message(
    bus: Bus, stream: StreamKind, subject: str, wanted: Callable[[StoredMessage], bool] = lambda stored: True
) -> StoredMessage:
    """Wait for a `wanted` message on `subject`, without a time limit. Continue while the broker is unavailable."""
    arrived: asyncio.Queue[StoredMessage] = asyncio.Queue()
    async with await bus.listen(subject, arrived.put):
        while (stored := await _find_stored(bus, stream, subject, wanted)) is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_RECHECK_INTERVAL_S):
                    while not wanted(heard := await arrived.get()):
                        pass
                    return heard
        return stored


async def gather_batched(questions: Iterable[Awaitable[T]]) -> list[T]:
    """Await `questions`, at most `_MAX_CONCURRENT` at a time. Return their results in the order of `questions`."""
    answers: list[T] = []
    left = iter(questions)
    while some := tuple(islice(left, _MAX_CONCURRENT)):
        answers += await asyncio.gather(*some)
    return answers


async def _find_stored(
    bus: Bus, stream: StreamKind, subject: str, wanted: Callable[[StoredMessage], bool]
) -> StoredMessage | None:
    try:
        last = await bus.last(stream, subject)
        if last is None or wanted(last):
            return last
        async with aclosing(as_async_generator(bus.read(stream, subject))) as messages:
            return await anext((stored async for stored in messages if wanted(stored)), None)
    except BusUnavailableError:
        if bus.closed:
            raise
        return None  # the bus reconnects, and the caller tries again


async def as_async_generator(messages: AsyncIterator[T]) -> AsyncGenerator[T, None]:
    """Wrap `messages` for `aclosing`, which then releases the resources of the bus on an early exit."""
    try:
        async for stored in messages:
            yield stored
    finally:
        if isinstance(messages, AsyncGenerator):
            await messages.aclose()


async def follow_workflow(
    bus: Bus, subjects: Subjects, workflow: str, *, team: str | None = None, present_only: bool = False
) -> AsyncGenerator[StoredMessage, None]:
    """Yield the commits of a workflow and the reports of its agents in the order of their time, and wait for more.

    Commits and reports are in different streams, because they have different writers. All reports that are stored
    before the end of the workflow come before the commit that ends the workflow.

    Args:
        bus: The bus.
        subjects: The subjects of the namespace.
        workflow: The workflow.
        team: The team; None for a workflow whose team is unknown.
        present_only: True to yield only messages that are stored now, and wait for no more. Default: False.

    Yields:
        The messages.
    """
    log = subjects.log(team, workflow) if team is not None else subjects.workflow_log(workflow)
    wanted: dict[StreamKind, str] = {"log": log, "results": subjects.workflow_events(workflow, team)}
    seen: dict[StreamKind, StoredMessage] = {}
    present: list[StoredMessage] = []
    for stream, subject in wanted.items():  # the log first: if it has the workflow's end, all reports are stored, too
        found = [stored async for stored in bus.read(stream, subject)]
        seen.update({stream: found[-1]} if found else {})
        present += found
    for stored in sorted(present, key=lambda stored: stored.at):
        yield stored
    if present_only:
        return
    arrived: asyncio.Queue[tuple[StreamKind, StoredMessage] | Exception] = asyncio.Queue(_MAX_CONCURRENT)

    def after(stream: StreamKind) -> int:
        return seen[stream].sequence if stream in seen else 0

    async def follow(stream: StreamKind) -> None:
        try:
            async with aclosing(
                as_async_generator(bus.follow(stream, [wanted[stream]], after=after(stream)))
            ) as messages:
                async for stored in messages:
                    await arrived.put((stream, stored))
        except Exception as error:
            await arrived.put(error)

    tasks = [asyncio.create_task(follow(stream)) for stream in wanted]
    try:
        while True:
            if isinstance(new := await arrived.get(), Exception):
                raise new
            stream, stored = new
            # Skip a report that was yielded before the commit that ends the workflow. But in a stream that was created
            # again, a later message has a lower sequence.
            if stored.sequence <= after(stream) and stored.at <= seen[stream].at:
                continue
            if stream == "log" and _ends_workflow(stored):
                async for report in bus.read("results", wanted["results"], after=after("results")):
                    seen["results"] = report
                    yield report
            seen[stream] = stored
            yield stored
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _ends_workflow(stored: StoredMessage) -> bool:
    with suppress(PeerError, ContractError):
        return any(isinstance(entry, WorkflowEnded) for entry in read_commit(stored).entries)
    return False


def team_of(log_subject: str) -> str:
    """Return the team of a log subject or outcome subject: the token before the workflow."""
    return log_subject.split(".")[-2]


def _no_log_message(subjects: Subjects, workflow: str) -> str:
    return (
        f"no log of workflow {workflow!r} in namespace {subjects.namespace!r}: the workflow is not admitted yet, its "
        "log was removed, or the id or the namespace is wrong; `pointsman list` shows the existing workflows"
    )
