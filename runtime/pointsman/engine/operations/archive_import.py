"""Import an archive into a namespace for reading only. No supervisor and no agent acts on an imported message.

An import first checks that all messages can be stored. If a check fails, the import stores no message. If an import is
interrupted after that, repeat it: the repeated import continues after the last stored message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pointsman.bus.validation import check_size, check_subject, header_size, wire_headers
from pointsman.engine.log.reader import IMPORTED_HEADER, gather_batched
from pointsman.engine.operations.archive import Archive, flatten
from pointsman.engine.operations.archive_reader import check_archive, is_importable
from pointsman.errors import (
    ConfigurationError,
    ConflictError,
    ContractError,
    PointsmanError,
    PublishOutcomeUnknownError,
)
from pointsman.ports.bus import Bus, StoredMessage, StreamKind
from pointsman_schemas.subjects import Subjects

__all__ = ["WorkflowExistsError", "import_workflow"]

_MAX_TRIES = 3  # number of times that a message is published, if the broker does not answer


class WorkflowExistsError(PointsmanError):
    """The namespace already has a workflow with the same id."""

    kind = "workflow_exists"


@dataclass(frozen=True, slots=True)
class _Message:
    """A record of the archive, in the form in which the import stores it."""

    workflow: str
    stream: StreamKind
    subject: str
    body: bytes
    headers: dict[str, str]

    def is_stored_as(self, stored: StoredMessage) -> bool:
        """Return True if `stored` is this message, from an import of the same namespace."""
        return stored.body == self.body and stored.headers.get(IMPORTED_HEADER) == self.headers[IMPORTED_HEADER]


async def import_workflow(bus: Bus, subjects: Subjects, archive: Archive) -> int:
    """Store the log, the events, the outcome and the dead letters of each workflow of an archive.

    Args:
        bus: The bus.
        subjects: The subjects of the namespace that receives the workflows.
        archive: The archive.

    Returns:
        The number of imported messages.

    Raises:
        ConfigurationError: The archive does not pass `check_archive`, or a message is too large for this namespace.
            Nothing was stored.
        WorkflowExistsError: A workflow of the archive already has messages in this namespace. Nothing was stored.
        BusUnavailableError: The broker did not answer. Repeat the import to continue after the last stored message.
    """
    check_archive(archive)
    messages = [message for each in flatten(archive) for message in _messages(each, subjects)]
    for message in messages:
        _check_fits(message, bus.max_body)
    count, ends = await _find_interrupted(bus, subjects, messages)
    for message in messages[count:]:
        ends[message.subject] = await _store(bus, subjects, message, ends.get(message.subject, 0))
    return len(messages)


def _messages(archive: Archive, subjects: Subjects) -> list[_Message]:
    """Return the messages to store, in the order of their time. The first message is the first commit.

    The broker stores the first commit of a workflow only once. So if two imports run in parallel, the second import
    fails at its first message, and stores no message.
    """
    log = Subjects(archive.namespace).log(archive.team, archive.workflow_id)
    first = next(record for record in archive.records if record.subject == log)
    kept = [record for record in archive.records if is_importable(record)]
    if (sequences := [record.sequence for record in kept if record.subject == log]) == sorted(sequences):
        # Commits and events keep the order of their time, because the reports of a task must come before the workflow's
        # end. Commits of a log with the same time keep the order of their sequences.
        kept.sort(key=lambda record: (record.at, record.sequence))
    kept.sort(key=lambda record: (record is not first, record.stream == "dead"))
    return [
        _Message(
            archive.workflow_id,
            record.stream,
            subjects.namespace + record.subject.removeprefix(archive.namespace),
            record.data,
            {**record.headers, IMPORTED_HEADER: archive.namespace},
        )
        for record in kept
    ]


def _check_fits(message: _Message, max_body: int) -> None:
    try:
        check_subject(message.subject)
        check_size(message.subject, header_size(wire_headers(message.headers)), len(message.body), max_body)
    except ContractError as error:
        raise ConfigurationError(f"{message.subject} cannot be stored: {error}; nothing was imported") from None


async def _find_interrupted(bus: Bus, subjects: Subjects, messages: Sequence[_Message]) -> tuple[int, dict[str, int]]:
    """Return the number of messages that an interrupted import has stored, and the last sequence of each subject.

    Raises:
        WorkflowExistsError: A subject has a different message, or all messages are already stored.
    """
    by_subject: dict[str, list[_Message]] = {}
    for message in messages:
        by_subject.setdefault(message.subject, []).append(message)
    for workflow in dict.fromkeys(message.workflow for message in messages):
        log = await bus.last("log", subjects.workflow_log(workflow))
        if log is not None and log.subject not in by_subject:  # a workflow of another team has the same id
            raise WorkflowExistsError(_exists_message(workflow, subjects))
    wanted = list(by_subject.values())
    newest = await gather_batched(bus.last(each[0].stream, each[0].subject) for each in wanted)
    ends: dict[str, int] = {}
    counts = Counter[str]()
    for each, last in zip(wanted, newest, strict=True):
        if last is None:
            continue
        first = each[0]
        stored = [message async for message in bus.read(first.stream, first.subject)]
        if len(stored) > len(each) or not all(map(_Message.is_stored_as, each, stored)):
            raise WorkflowExistsError(_exists_message(first.workflow, subjects))
        ends[first.subject], counts[first.subject] = last.sequence, len(stored)
    count = counts.total()
    if count == len(messages) or Counter(message.subject for message in messages[:count]) != counts:
        raise WorkflowExistsError(
            _exists_message(next(message.workflow for message in messages if counts[message.subject]), subjects)
        )
    return count, ends


async def _store(bus: Bus, subjects: Subjects, message: _Message, end: int) -> int:
    """Store one message after the sequence `end` of its subject. Return the sequence of the message."""
    for attempt in range(_MAX_TRIES):
        try:
            return await bus.publish(message.subject, message.body, message.headers, expect=end)
        except PublishOutcomeUnknownError:
            if attempt == _MAX_TRIES - 1:
                raise
        except ConflictError:
            last = await bus.last(message.stream, message.subject)
            if attempt and last is not None and message.is_stored_as(last):  # an unanswered attempt stored the message
                return last.sequence
            raise WorkflowExistsError(_exists_message(message.workflow, subjects)) from None
    raise AssertionError("unreachable")


def _exists_message(workflow: str, subjects: Subjects) -> str:
    return (
        f"namespace {subjects.namespace!r} already has a workflow {workflow}; import the archive into another "
        "namespace, with --namespace"
    )
