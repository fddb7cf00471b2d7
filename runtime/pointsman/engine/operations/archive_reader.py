"""Read an archive, and check that the archive contains complete logs, and only messages of its workflows.

A file may come from any source, so all checks are made before a command acts on the archive. An import stores the whole
archive or no message, and no message of a file reaches a supervisor or an agent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pydantic import ValidationError

from pointsman.bus.validation import check_subject, matches
from pointsman.core.evolve import apply_commit
from pointsman.core.model.state import State
from pointsman.core.views.trace import child_workflows
from pointsman.engine.log.reader import read_commit
from pointsman.engine.operations.archive import Archive, Record, archived_subjects, flatten
from pointsman.errors import ConfigurationError, ContractError, InvalidTokenError, describe_error
from pointsman.ports.bus import StoredMessage, StreamKind
from pointsman_schemas.envelope import decode
from pointsman_schemas.events import DeadLetter, Outcome
from pointsman_schemas.log import Commit
from pointsman_schemas.strict_json import describe, parse
from pointsman_schemas.subjects import Subjects

__all__ = ["check_archive", "commits_of", "is_importable", "read_archive"]

_EXPORT_HINT = "export the workflow again with `pointsman export`"


def read_archive(text: bytes) -> Archive | tuple[Commit, ...]:
    """Read a file that `pointsman export` wrote, or a log with one commit in each line.

    Args:
        text: The content of the file.

    Returns:
        The archive, or the commits of the log.

    Raises:
        ConfigurationError: The content is neither an archive nor a log, has an unsupported version, or does not pass
            `check_archive`.
    """
    try:
        if not text.lstrip().startswith(b'{"number"'):
            archive = Archive.model_validate_json(text)
            check_archive(archive)
            return archive
        commits = tuple(parse(Commit, line) for line in text.splitlines() if line.strip())
    except ValidationError as error:
        raise ConfigurationError(
            f"this is not a workflow that `pointsman export` of this release wrote: {describe(error)}"
        ) from None
    except ContractError as error:
        raise ConfigurationError(f"this is not a log: {error}") from None
    _fold(commits, "the log")
    return commits


def check_archive(archive: Archive) -> None:
    """Check every workflow of `archive`.

    A record must be a message of its workflow, on a subject and in a stream that an export reads. A log must contain
    all commits from the first commit on, in order. After the end of the workflow, only a commit that begins the next
    round may follow. Each commit must follow from the state before the commit. A child must be a workflow that a task
    of its parent started.

    Args:
        archive: The archive.

    Raises:
        ConfigurationError: A check failed. The message names the workflow, the record and the expected form.
    """
    workflows = [each.workflow_id for each in flatten(archive)]
    if len(set(workflows)) < len(workflows):
        raise ConfigurationError(f"the archive contains a workflow twice: {', '.join(workflows)}; {_EXPORT_HINT}")
    for each in flatten(archive):
        _check_workflow(each)


def commits_of(archive: Archive) -> Iterator[Commit]:
    """Return the commits of a workflow's log, without the commits of the workflows below it.

    Returns:
        An iterator of the commits.

    Raises:
        ContractError: A commit cannot be read.
    """
    log = Subjects(archive.namespace).log(archive.team, archive.workflow_id)
    return (read_commit(_as_stored(record)) for record in archive.records if record.subject == log)


def is_importable(record: Record) -> bool:
    """Return True if an import stores the record. Messages that would start work are not imported."""
    return record.stream in ("log", "dead") or record.subject.split(".")[1] == "event"


def _check_workflow(archive: Archive) -> None:
    subjects, workflow = Subjects(archive.namespace), archive.workflow_id
    for record in archive.records:
        _check_record(archive, record, subjects)
    try:
        commits = tuple(commits_of(archive))
    except ContractError as error:
        raise ConfigurationError(f"the log of {workflow} cannot be read: {error}; {_EXPORT_HINT}") from None
    state = _fold(commits, f"the log of {workflow}")
    if (state.workflow_id, state.team) != (workflow, archive.team):
        raise ConfigurationError(
            f"the log of {workflow} of {archive.team} belongs to {state.workflow_id} of {state.team}; {_EXPORT_HINT}"
        )
    outcomes = [record for record in archive.records if record.subject == subjects.outcome(archive.team, workflow)]
    if len(outcomes) > 1 or (outcomes and not state.ended):
        raise ConfigurationError(
            f"{workflow} has {len(outcomes)} outcomes and has {'' if state.ended else 'not '}ended; expected one "
            f"outcome for an ended workflow, else no outcome; {_EXPORT_HINT}"
        )
    started = child_workflows([entry for commit in commits for entry in commit.entries])
    for child in archive.children:
        if child.workflow_id not in started or child.namespace != archive.namespace:
            raise ConfigurationError(
                f"{child.workflow_id} of the namespace {child.namespace} is in the archive as a child of {workflow}, "
                f"but no task of {workflow} started {child.workflow_id}; {_EXPORT_HINT}"
            )


def _check_record(archive: Archive, record: Record, subjects: Subjects) -> None:
    if not _is_own(archive, record, subjects):
        raise ConfigurationError(
            f"record {record.sequence} on {record.subject[:200]!r} of the stream {record.stream!r} is not a message of "
            f"workflow {archive.workflow_id} of {archive.team}; nothing was imported; {_EXPORT_HINT}"
        )
    try:
        if broker := [name for name in record.headers if name.lower().startswith("nats-")]:
            raise ContractError(f"the header {broker[0][:80]!r} is a command to the broker")
        _check_body(archive, record, record.data)
    except ValueError as error:  # a ContractError is a ValueError, too
        raise ConfigurationError(
            f"record {record.sequence} on {record.subject[:200]!r} cannot be read: {describe_error(error)}; "
            f"{_EXPORT_HINT}"
        ) from None


def _is_own(archive: Archive, record: Record, subjects: Subjects) -> bool:
    try:
        check_subject(record.subject)
    except InvalidTokenError:
        return False
    return any(matches(pattern, record.subject) for pattern in _own_subjects(archive, subjects, record.stream))


def _own_subjects(archive: Archive, subjects: Subjects, stream: StreamKind) -> Sequence[str]:
    """Return the subjects of the workflow that an export reads from a stream."""
    archived = archived_subjects(subjects, archive.team, archive.workflow_id)
    return [subject for kind, subject in archived if kind == stream]


def _check_body(archive: Archive, record: Record, body: bytes) -> None:
    """Raise `ContractError` if an outcome or a dead letter does not belong to this workflow."""
    kind = record.subject.split(".")[1]
    if kind == "outcome":
        outcome = parse(Outcome, decode(record.headers, body)[1])
        if (outcome.workflow_id, outcome.team) != (archive.workflow_id, archive.team):
            raise ContractError(f"the outcome belongs to {outcome.workflow_id} of {outcome.team}")
    elif kind == "dead":
        letter = parse(DeadLetter, decode(record.headers, body)[1])
        if letter.workflow_id != archive.workflow_id:
            raise ContractError(f"the dead letter belongs to workflow {letter.workflow_id}")


def _fold(commits: Sequence[Commit], name: str) -> State:
    """Return the state after all commits."""
    if not commits:
        raise ConfigurationError(f"{name} has no commit; export the workflow again before its retention period ends")
    state: State | None = None
    for commit in commits:
        _check_order(commit, state, name)
        try:
            state = apply_commit(state, commit)
        except Exception as error:  # the file may contain any entry, and invalid entries raise different errors
            raise ConfigurationError(
                f"commit {commit.number} of {name} does not follow from the commits before it: "
                f"{describe_error(error)}; {_EXPORT_HINT}"
            ) from None
    assert state is not None
    return state


def _check_order(commit: Commit, state: State | None, name: str) -> None:
    expected = state.commits + 1 if state else 1
    if commit.number != expected:
        raise ConfigurationError(
            f"{name} has commit {commit.number} where commit {expected} is expected: a commit is missing, stored twice "
            f"or out of order; {_EXPORT_HINT}"
        )
    if state is not None and state.ended and commit.round == state.round:
        raise ConfigurationError(f"{name} has commit {commit.number} after the workflow's end; {_EXPORT_HINT}")


def _as_stored(record: Record) -> StoredMessage:
    return StoredMessage(record.subject, record.data, record.headers, record.sequence, record.at)
