"""Export a workflow: read all its messages, and all messages of its child workflows, from the streams."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime

from pointsman.bus.validation import printable
from pointsman.core.views.trace import child_workflows
from pointsman.engine.log.reader import is_outcome, newest_commit, round_of_outcome
from pointsman.engine.operations.archive import Archive, Record, archived_subjects
from pointsman.engine.operations.archive_reader import commits_of
from pointsman.engine.operations.dead_letter_entry import read_dead_letter
from pointsman.errors import ContractError, NotFoundError
from pointsman.ports.bus import Bus, StoredMessage, StreamKind
from pointsman_schemas.subjects import Subjects

__all__ = ["export_workflow"]


async def export_workflow(bus: Bus, subjects: Subjects, workflow: str, now: datetime) -> Archive:
    """Export a workflow: log, events, outcome, handoffs, results, controls and dead letters.

    Args:
        bus: The bus.
        subjects: The subjects of the workflow's namespace.
        workflow: The workflow's id.
        now: The time of the export.

    Returns:
        The archive, with an archive of each child workflow that has begun.

    Raises:
        NotFoundError: The workflow has no log.
    """
    newest = await newest_commit(bus, subjects, workflow)
    team = newest.team
    ns = subjects.namespace
    records = [
        _record(stream, stored)
        for stream, subject in archived_subjects(subjects, team, workflow)
        async for stored in bus.read(stream, subject)
        if _is_exported(stream, stored, subjects, newest.commit.round)
    ]
    archive = Archive(namespace=ns, team=team, workflow_id=workflow, exported_at=now, records=tuple(records))
    children: list[Archive] = []
    for child in _children_of(archive):
        with suppress(NotFoundError):  # the child was not admitted yet, or its log was removed
            children.append(await export_workflow(bus, subjects, child, now))
    return archive.model_copy(update={"children": tuple(children)})


def _is_exported(stream: StreamKind, stored: StoredMessage, subjects: Subjects, round: int) -> bool:
    """Return True, except for a foreign message on the subject of an outcome or of a dead letter.

    Also return False for the outcome of a round before the newest round, `round`, because a supervisor will withdraw
    this outcome.
    """
    if stream == "dead":
        with suppress(ContractError):
            read_dead_letter(stored)
            return True
        return False
    if not stored.subject.startswith(f"{subjects.namespace}.outcome."):
        return True
    return is_outcome(stored) and round_of_outcome(stored) >= round


def _children_of(archive: Archive) -> Sequence[str]:
    try:
        return child_workflows([entry for commit in commits_of(archive) for entry in commit.entries])
    except (ContractError, ValueError):  # the log cannot be read, or its beginning was removed
        return ()


def _record(stream: StreamKind, stored: StoredMessage) -> Record:
    # Leave out the headers that are commands to the broker. They were meant for the publish that stored this message,
    # and must not act again when an import publishes the message.
    headers = {name: printable(value) for name, value in stored.headers.items() if not name.lower().startswith("nats-")}
    try:
        body, encoding = stored.body.decode(), "utf-8"
    except UnicodeDecodeError:
        body, encoding = base64.b64encode(stored.body).decode(), "base64"
    return Record.model_validate({
        "stream": stream, "subject": printable(stored.subject), "sequence": stored.sequence, "at": stored.at,
        "headers": headers, "body": body, "encoding": encoding,
    })  # fmt: skip
