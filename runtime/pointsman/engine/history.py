"""A workflow's log as it stands in the stream, read back into entries."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

from pointsman.errors import NotFound, UnknownEventType
from pointsman.ports import Bus, Stored
from pointsman_schemas.envelope import decode
from pointsman_schemas.log import Commit, Entry
from pointsman_schemas.strict_json import parse
from pointsman_schemas.subjects import Subjects

__all__ = ["closeable", "commit_of", "entries_of", "newest_commit", "not_found", "team_of"]


def commit_of(stored: Stored) -> Commit:
    """The commit a log message holds.

    Raises:
        UnknownEventType: another type or version than this release writes. A log is never half understood.
        UndecodableEvent: headers or body cannot be read.
    """
    envelope, body = decode(stored.headers, stored.body)
    if envelope is not None and envelope.type != Commit.event_type:
        raise UnknownEventType(
            f"message {stored.sequence} on {stored.subject} has type {envelope.type!r}; this release reads "
            f"{Commit.event_type!r}; use the release of Pointsman that wrote it"
        )
    return parse(Commit, body)


async def entries_of(bus: Bus, subjects: Subjects, workflow: str) -> tuple[Entry, ...]:
    """Every entry of the workflow's log, in order. Raises `NotFound` when it has none."""
    entries = [
        entry
        async for stored in bus.read("log", subjects.log_anywhere(workflow))
        for entry in commit_of(stored).entries
    ]
    if not entries:
        raise not_found(subjects, workflow)
    return tuple(entries)


async def newest_commit(bus: Bus, subjects: Subjects, workflow: str) -> tuple[str, Commit]:
    """The workflow's team and its newest commit. Raises `NotFound` when it has no log."""
    stored = await bus.last("log", subjects.log_anywhere(workflow))
    if stored is None:
        raise not_found(subjects, workflow)
    return team_of(stored.subject), commit_of(stored)


async def closeable(messages: AsyncIterator[Stored]) -> AsyncGenerator[Stored, None]:
    """`messages` as something to put into `aclosing`: who leaves early must release what the bus holds for him."""
    try:
        async for stored in messages:
            yield stored
    finally:
        if isinstance(messages, AsyncGenerator):
            await messages.aclose()


def team_of(log_subject: str) -> str:
    """The team that a log or outcome subject names: the token before the workflow."""
    return log_subject.split(".")[-2]


def not_found(subjects: Subjects, workflow: str) -> NotFound:
    return NotFound(
        f"no log of workflow {workflow!r} in namespace {subjects.namespace!r}: it is not admitted yet, its log has "
        "aged out, or the id or the namespace is another; `pointsman list` shows the ones there are"
    )
