"""The archive: one document with all messages of a workflow and of its child workflows."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Final, Literal

from pydantic import AwareDatetime

from pointsman.ports.bus import StreamKind
from pointsman_schemas.base import Frozen
from pointsman_schemas.ids import TeamName, Token, WorkflowId
from pointsman_schemas.subjects import Subjects

__all__ = ["Archive", "Record", "archived_subjects", "flatten"]

ARCHIVE_VERSION: Final = 1


class Record(Frozen):
    """One message of a stream. `body` is text, or base64 if the message is not UTF-8 text."""

    stream: StreamKind
    subject: str
    sequence: int
    at: AwareDatetime
    headers: dict[str, str]
    body: str
    encoding: Literal["utf-8", "base64"] = "utf-8"

    @property
    def data(self) -> bytes:
        """The bytes of the message.

        Raises:
            ValueError: The body is not valid base64.
        """
        return self.body.encode() if self.encoding == "utf-8" else base64.b64decode(self.body, validate=True)


class Archive(Frozen):
    """A workflow of `team` with its messages in the streams of its namespace at `exported_at`."""

    format: Literal["pointsman.workflow"] = "pointsman.workflow"
    version: Literal[1] = ARCHIVE_VERSION
    namespace: Token
    team: TeamName
    workflow_id: WorkflowId
    exported_at: AwareDatetime
    records: tuple[Record, ...]
    children: tuple[Archive, ...] = ()
    """The child workflows, which other teams started for tasks of this workflow."""


def flatten(archive: Archive) -> Iterator[Archive]:
    """Yield `archive` and the archives of all workflows below it."""
    yield archive
    for child in archive.children:
        yield from flatten(child)


def archived_subjects(subjects: Subjects, team: str, workflow: str) -> tuple[tuple[StreamKind, str], ...]:
    """Return the subjects of a workflow that an archive contains, each with its stream, in the order of the archive.

    Args:
        subjects: The subjects of the workflow's namespace.
        team: The team.
        workflow: The workflow.

    Returns:
        The streams and subject filters.
    """
    return (
        ("log", subjects.log(team, workflow)),
        ("log", subjects.workflow_questions(workflow, team)),
        ("log", subjects.workflow_messages("message", team, workflow)),
        ("log", subjects.outcome(team, workflow)),
        ("results", subjects.workflow_messages("event", team, workflow)),
        ("results", subjects.workflow_messages("result", team, workflow)),
        ("controls", subjects.workflow_messages("control", team, workflow)),
        ("handoffs", subjects.workflow_messages("handoff", team, workflow)),
        ("work", subjects.workflow_messages("timer", team, workflow)),
        ("dead", subjects.dead_letters_for(workflow=workflow)),
    )
