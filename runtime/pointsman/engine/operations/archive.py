"""A whole workflow and those its teams started for it, in one document: what went wrong is looked at elsewhere.

It holds every message about the workflow that the streams still have: log, events, outcome, handoffs, results, controls
and dead letters. Imported into another namespace it can be shown, traced and replayed, and nothing acts on it: what is
to be done is not put into a work stream, and a supervisor that is given an input for it refuses.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final, Literal

from pydantic import AwareDatetime, ValidationError

from pointsman.bus.validation import printable
from pointsman.core.views.trace import child_workflows
from pointsman.engine.log.reader import IMPORTED_HEADER, newest_commit
from pointsman.errors import ConfigurationError, ConflictError, ContractError, NotFoundError, PointsmanError
from pointsman.ports.bus import Bus, StoredMessage, StreamKind
from pointsman_schemas.base import Frozen
from pointsman_schemas.ids import TeamName, Token, WorkflowId
from pointsman_schemas.log import Commit
from pointsman_schemas.strict_json import describe, parse
from pointsman_schemas.subjects import Subjects

__all__ = [
    "Archive",
    "Record",
    "WorkflowExistsError",
    "commits_of",
    "export_workflow",
    "flatten",
    "import_workflow",
    "read_archive",
]

ARCHIVE_VERSION: Final = 1


class WorkflowExistsError(PointsmanError):
    """A workflow of that id has a log in this namespace already."""

    kind = "workflow_exists"


class Record(Frozen):
    """One message as its stream holds it. `body` is text, or base64 where it is no text."""

    stream: StreamKind
    subject: str
    sequence: int
    at: AwareDatetime
    headers: dict[str, str]
    body: str
    encoding: Literal["utf-8", "base64"] = "utf-8"

    @property
    def data(self) -> bytes:
        return self.body.encode() if self.encoding == "utf-8" else base64.b64decode(self.body)


class Archive(Frozen):
    """A workflow of `team`, as the namespace it ran in held it at `exported_at`."""

    format: Literal["pointsman.workflow"] = "pointsman.workflow"
    version: Literal[1] = ARCHIVE_VERSION
    namespace: Token
    team: TeamName
    workflow_id: WorkflowId
    exported_at: AwareDatetime
    records: tuple[Record, ...]
    children: tuple[Archive, ...] = ()
    """The workflows that teams started for tasks of this one, as far as they had begun."""


async def export_workflow(bus: Bus, subjects: Subjects, workflow: str, now: datetime) -> Archive:
    """Everything there is about the workflow and those below it. Raises `NotFoundError` when it has no log."""
    team, _ = await newest_commit(bus, subjects, workflow)
    ns = subjects.namespace
    wanted: tuple[tuple[StreamKind, str], ...] = (
        ("log", subjects.log(team, workflow)),
        ("log", subjects.workflow_events(workflow)),
        ("log", subjects.outcome(team, workflow)),
        ("handoffs", f"{ns}.handoff.*.{workflow}.>"),
        ("work", f"{ns}.inbox.{team}.{workflow}.>"),
        ("dead", subjects.dead_letters_for(workflow=workflow)),
    )
    records = [_record(stream, stored) for stream, subject in wanted async for stored in bus.read(stream, subject)]
    found = Archive(namespace=ns, team=team, workflow_id=workflow, exported_at=now, records=tuple(records))
    below: list[Archive] = []
    for child in _children_of(found):
        with suppress(NotFoundError):  # its team has not taken it yet, or its log has aged out
            below.append(await export_workflow(bus, subjects, child, now))
    return found.model_copy(update={"children": tuple(below)})


async def import_workflow(bus: Bus, subjects: Subjects, archive: Archive) -> int:
    """Store the log, the events, the outcome and the dead letters of each workflow; the number of messages.

    Raises:
        WorkflowExistsError: a workflow of one of the ids has a log here. Nothing was stored.
    """
    for each in flatten(archive):
        if await bus.last("log", subjects.workflow_log(each.workflow_id)) is not None:
            raise _stored_subjects(each, subjects)
    return sum([await _import_one(bus, subjects, each) for each in flatten(archive)])


def read_archive(text: bytes) -> Archive | tuple[Commit, ...]:
    """An archive; or the commits of a bare log, one a line, as `tests/replay` keeps them.

    Raises:
        ConfigurationError: it is neither, or of a version this release does not know.
    """
    try:
        if not text.lstrip().startswith(b'{"number"'):
            return Archive.model_validate_json(text)
        return tuple(parse(Commit, line) for line in text.splitlines() if line.strip())
    except ValidationError as error:
        raise ConfigurationError(
            f"this is no workflow that `pointsman export` of this release wrote: {describe(error)}"
        ) from None
    except ContractError as error:
        raise ConfigurationError(f"this is no log: {error}") from None


def flatten(archive: Archive) -> Iterator[Archive]:
    """The archive, and those of the workflows below it."""
    yield archive
    for child in archive.children:
        yield from flatten(child)


def commits_of(archive: Archive) -> Iterator[Commit]:
    """The workflow's log. Raises `ContractError` for a commit that cannot be read."""
    prefix = f"{archive.namespace}.log."
    return (parse(Commit, record.data) for record in archive.records if record.subject.startswith(prefix))


async def _import_one(bus: Bus, subjects: Subjects, archive: Archive) -> int:
    log = subjects.log(archive.team, archive.workflow_id)
    kept = [record for record in archive.records if record.stream != "work"]
    end = 0
    for record in kept:
        subject = subjects.namespace + record.subject.removeprefix(archive.namespace)
        headers = {**record.headers, IMPORTED_HEADER: archive.namespace}
        try:
            sequence = await bus.publish(subject, record.data, headers, expect=end if subject == log else None)
        except ConflictError:
            raise _stored_subjects(archive, subjects) from None
        end = sequence if subject == log else end
    return len(kept)


def _children_of(archive: Archive) -> Sequence[str]:
    try:
        return child_workflows([entry for commit in commits_of(archive) for entry in commit.entries])
    except (ContractError, ValueError):  # a log that cannot be read, or lost its beginning, does not say
        return ()


def _record(stream: StreamKind, stored: StoredMessage) -> Record:
    # The broker's own headers are about the publish that stored it, which is not repeated.
    headers = {name: printable(value) for name, value in stored.headers.items() if not name.lower().startswith("nats-")}
    try:
        body, encoding = stored.body.decode(), "utf-8"
    except UnicodeDecodeError:
        body, encoding = base64.b64encode(stored.body).decode(), "base64"
    return Record.model_validate({
        "stream": "work" if stream == "handoffs" else stream,  # wherever it had them, and as releases before read it
        "subject": printable(stored.subject), "sequence": stored.sequence, "at": stored.at,
        "headers": headers, "body": body, "encoding": encoding,
    })  # fmt: skip


def _stored_subjects(archive: Archive, subjects: Subjects) -> WorkflowExistsError:
    return WorkflowExistsError(
        f"namespace {subjects.namespace!r} has a workflow {archive.workflow_id} already; import it into another, with "
        "--namespace"
    )
