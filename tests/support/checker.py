"""Check the invariants of workflows from the streams alone. They must hold after any kills.

`problems` returns a sentence for each broken invariant. It works on any bus.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from pointsman.clock import SystemClock
from pointsman.core.evolve import apply_commit
from pointsman.core.model.state import State, from_snapshot
from pointsman.core.outbox import outbox
from pointsman.engine.log.reader import read_commit
from pointsman.engine.log.workflow_log import WorkflowLog
from pointsman.errors import InvariantError
from pointsman.ports.bus import Bus, StoredMessage, StreamKind
from pointsman_schemas.events import Handoff, Outcome
from pointsman_schemas.log import AttemptFailed, Commit, Entry, TaskDispatched, TaskSucceeded, WorkflowEnded
from pointsman_schemas.strict_json import parse
from pointsman_schemas.subjects import Subjects

__all__ = ["problems"]


async def problems(bus: Bus, subjects: Subjects, team: str, workflows: Iterable[str]) -> list[str]:
    """Return the problems of these workflows of `team`. Each workflow must have had the time to end."""
    commits: dict[str, list[tuple[StoredMessage, Commit]]] = defaultdict(list)
    async for stored in bus.read("log", subjects.team_logs(team)):
        commits[_workflow(stored)].append((stored, read_commit(stored)))
    outcomes: dict[str, list[StoredMessage]] = defaultdict(list)
    async for stored in bus.read("log", subjects.team_outcomes(team)):
        outcomes[_workflow(stored)].append(stored)
    sent: Counter[str] = Counter()
    both: tuple[tuple[StreamKind, str], ...] = (
        ("handoffs", f"{subjects.namespace}.handoff.>"),
        ("results", subjects.team_results(team)),
    )
    for stream, pattern in both:
        async for stored in bus.read(stream, pattern):
            sent[stored.subject] += 1
    wrong = [f"{subject} was sent {count} times" for subject, count in sent.items() if count > 1]
    log = WorkflowLog(bus, subjects, SystemClock(), team)
    for workflow in workflows:
        if workflow not in commits:
            wrong.append(f"{workflow} has no log: it was lost")
            continue
        state = None
        try:
            state = _folded(commits[workflow])
        except (InvariantError, AssertionError) as error:
            wrong.append(f"{workflow}: {error}")
        entries = [entry for _, commit in commits[workflow] for entry in commit.entries]
        wrong += (f"{workflow}: {problem}" for problem in _check_entries(entries))
        wrong += (f"{workflow}: {problem}" for problem in _outcome(entries, outcomes[workflow]))
        if state is not None:
            if (await log.load(workflow)).state != state:
                wrong.append(f"{workflow}: what a supervisor loads is not the fold of its log")
            handoffs = {message.subject for message in outbox(state, subjects) if isinstance(message.event, Handoff)}
            wrong += (f"{workflow}: {subject} was decided and not sent" for subject in handoffs - sent.keys())
    return wrong


def _workflow(stored: StoredMessage) -> str:
    return stored.subject.rpartition(".")[2]


def _folded(commits: Iterable[tuple[StoredMessage, Commit]]) -> State | None:
    """Return the fold of a whole log. Assert that numbers have no gap, and that snapshots equal the folded state."""
    state: State | None = None
    for place, (_, commit) in enumerate(commits, 1):
        assert commit.number == place, f"commit at place {place} has number {commit.number}; expected no gap"
        state = apply_commit(state, commit)
        if commit.snapshot is not None:
            assert from_snapshot(commit.snapshot) == state, (
                f"the snapshot in commit {place} differs from the folded state"
            )
    return state


def _check_entries(entries: list[Entry]) -> Iterator[str]:
    """Check for one terminal entry at the end, one dispatch and one end of each attempt, and one success of each
    task."""
    ends = [entry for entry in entries if isinstance(entry, WorkflowEnded)]
    if len(ends) != 1 or entries[-1] is not ends[0]:
        yield f"{len(ends)} terminal entries; the last entry is {entries[-1].kind}"
    dispatched = Counter((entry.task_id, entry.attempt) for entry in entries if isinstance(entry, TaskDispatched))
    yield from (f"attempt {key} was dispatched {count} times" for key, count in dispatched.items() if count > 1)
    ended = Counter(
        (entry.task_id, entry.attempt) for entry in entries if isinstance(entry, TaskSucceeded | AttemptFailed)
    )
    yield from (f"attempt {key} ended {count} times" for key, count in ended.items() if count > 1)
    accepted = Counter(entry.task_id for entry in entries if isinstance(entry, TaskSucceeded))
    yield from (f"{count} results of {task} were accepted" for task, count in accepted.items() if count > 1)


def _outcome(entries: list[Entry], outcomes: list[StoredMessage]) -> Iterator[str]:
    if len(outcomes) != 1:
        yield f"{len(outcomes)} outcomes"
    for stored in outcomes:
        if not isinstance(end := entries[-1], WorkflowEnded) or parse(Outcome, stored.body) != end.outcome:
            yield "its outcome is not the one in its log"
