"""Check that a log folds and that its entries keep all invariants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from pointsman.core.evolve import apply_commit
from pointsman.core.model.state import State, from_snapshot
from pointsman.core.replay.replayer import replay_log
from pointsman.errors import InvariantError
from pointsman.ports.bus import StoredMessage
from pointsman_schemas.card import Role
from pointsman_schemas.events import Control
from pointsman_schemas.log import (
    AttemptFailed,
    BudgetAwaited,
    Commit,
    Entry,
    ItemsGathered,
    PlanAccepted,
    QuestionAnswered,
    QuestionAsked,
    RetryScheduled,
    ReviewRequested,
    TaskAbandoned,
    TaskAdded,
    TaskDispatched,
    TaskExpanded,
    TaskFailed,
    TaskReopened,
    TaskSucceeded,
    WorkflowEnded,
    WorkflowResumed,
)
from pointsman_schemas.retry import RetryPolicy
from pointsman_schemas.strict_json import dump
from simulation.draws import fits

__all__ = ["differences", "problems_of"]

_LARGE = 1_040_000  # bytes; a larger commit may omit its decision context: a world's lowest limit is 1,048,576


def problems_of(commits: Sequence[tuple[StoredMessage, Commit]], answers: Mapping[str, Control]) -> Iterator[str]:
    """Return a sentence for every broken invariant of the log. `answers` are the controls of people."""
    entries = [entry for _, commit in commits for entry in commit.entries]
    yield from _log(commits)
    yield from _task_lifecycles(entries)
    yield from _spending(entries)
    yield from _questions(entries, answers)
    yield from differences([commit for _, commit in commits])


def differences(commits: Sequence[Commit]) -> list[str]:
    """Return the differences between the recorded decisions and those of the current code. Expected: none."""
    found = [
        f"commit {commit.number} does not say what it was decided upon"
        for commit in commits
        if not commit.decision_context and len(dump(commit)) < _LARGE
    ]
    with suppress(InvariantError):  # `_log` reports this error
        found += [
            f"commit {each.commit} is decided otherwise again: {each.actual} in the place of {each.expected}"
            for each in replay_log(commits)
        ]
    return found


def _log(commits: Sequence[tuple[StoredMessage, Commit]]) -> Iterator[str]:
    """Check that numbers have no gaps, entries fold, and snapshots equal the folded states."""
    state: State | None = None
    newest: int | None = None
    for place, (stored, commit) in enumerate(commits, 1):
        if commit.number != place:
            yield f"commit at place {place} has number {commit.number}; expected no gap"
            return
        try:
            state = apply_commit(state, commit)
        except InvariantError as error:
            yield f"commit {place} cannot be folded: {error}"
            return
        if commit.snapshot_sequence != newest:
            yield f"commit {place} says the newest snapshot is {commit.snapshot_sequence}; it is {newest}"
        if commit.snapshot is not None:
            newest = stored.sequence
            if (kept := from_snapshot(commit.snapshot)) != state or list(kept.tasks) != list(state.tasks):
                yield f"the snapshot of commit {place} differs from the folded state"


def _task_lifecycles(entries: Sequence[Entry]) -> Iterator[str]:
    """Check the life cycle of each task without code of the core."""
    started = entries[0]
    policy = started.retry if started.kind == "workflow_started" else RetryPolicy()
    limits: dict[str, int] = {}
    own: dict[str, int] = {}
    current: dict[str, tuple[int, str]] = {}
    succeeded: set[str] = set()
    failed: set[str] = set()
    needs: dict[str, tuple[str, ...]] = {}
    items: dict[str, tuple[str, ...]] = {}
    reopened: Counter[str] = Counter()
    asked: Counter[str] = Counter()
    judges: dict[str, object] = {}
    in_review: set[object] = set()
    for entry in entries:
        match entry:
            case TaskAdded(role=Role.JUDGE, input=dict() as given) if "task_id" in given:
                judges[entry.task_id] = given["task_id"]
            case ReviewRequested():
                in_review.add(entry.task_id)
            case PlanAccepted():
                for planned in entry.plan.tasks:
                    needs[planned.id] = planned.depends_on
                    limits[planned.id] = own[planned.id] = (planned.retry or policy).attempts
            case TaskDispatched() | RetryScheduled():
                before = current.get(entry.task_id, (0, ""))[0]
                current[entry.task_id] = entry.attempt, entry.agent
                if entry.attempt != before + 1:
                    yield f"attempt {entry.attempt} of {entry.task_id} follows attempt {before}"
                limit = limits.get(entry.task_id, policy.attempts)
                if entry.attempt > limit + 1 + 2 * reopened[entry.task_id] + asked[entry.task_id]:
                    yield f"{entry.task_id} had {entry.attempt} attempts; its limit is {limit}"
                if entry.task_id in succeeded | failed:
                    yield f"{entry.task_id} was dispatched after it was settled"
                if isinstance(entry, TaskDispatched) and (gap := set(needs.get(entry.task_id, ())) - succeeded):
                    yield f"{entry.task_id} was dispatched before {sorted(gap)}"
            case TaskSucceeded():
                said = (entry.attempt, entry.result.agent)
                if entry.task_id in in_review:
                    yield f"{entry.task_id} was accepted before its judge passed it"
                if isinstance(entry.result.output, dict) and entry.result.output.get("verdict") == "pass":
                    in_review.discard(judges.get(entry.task_id))
                if entry.task_id in succeeded | failed:
                    yield f"a second result of {entry.task_id} was accepted"
                if said != current.get(entry.task_id) or entry.result.attempt != entry.attempt:
                    yield f"the result {said} of {entry.task_id} was accepted; expected {current.get(entry.task_id)}"
                succeeded.add(entry.task_id)
            case TaskExpanded():
                items[entry.task_id] = entry.items
                limits.update(dict.fromkeys(entry.items, limits.get(entry.task_id, policy.attempts)))
                own.update(dict.fromkeys(entry.items, own.get(entry.task_id, policy.attempts)))
            case ItemsGathered():
                if gap := set(items.get(entry.task_id, ())) - set(entry.missing) - succeeded:
                    yield f"{entry.task_id} was gathered before {sorted(gap)}"
                if entry.task_id in succeeded | failed:
                    yield f"{entry.task_id} was gathered after it was settled"
                succeeded.add(entry.task_id)
            case TaskFailed():
                if entry.task_id in failed or (entry.task_id in succeeded and entry.task_id in needs):
                    yield f"{entry.task_id} failed after it was settled"  # a plan may be refused
                failed.add(entry.task_id)
            case WorkflowResumed():
                for task_id in entry.tasks:
                    attempts = current.get(task_id, (0, ""))[0]
                    base = limits.setdefault(task_id, policy.attempts)
                    limits[task_id] = max(base, attempts + own.get(task_id, policy.attempts))
                    failed.discard(task_id)
                    succeeded.discard(task_id)
                    in_review.discard(task_id)
            case TaskReopened():
                reopened[entry.task_id] += 1
                failed.discard(entry.task_id)
            case QuestionAsked() if entry.task_id is not None and entry.about in ("tool", "information"):
                asked[entry.task_id] += 1  # a question ends its attempt
            case _:
                pass


def _questions(entries: Sequence[Entry], answers: Mapping[str, Control]) -> Iterator[str]:
    """Check that each question ends once, by an answer or a timeout, and that guarded work starts only afterwards."""
    asked: dict[str, QuestionAsked] = {}
    open_: dict[str, QuestionAsked] = {}
    refused, begun = set[str](), set[str | None]()
    for entry in entries:
        match entry:
            case QuestionAsked():
                if entry.question in asked:
                    yield f"{entry.question} was asked twice"
                asked[entry.question] = open_[entry.question] = entry
            case QuestionAnswered():
                if (question := open_.pop(entry.question, None)) is None:
                    yield f"{entry.question} was decided, but was not open"
                    continue
                said = answers.get(entry.event_id)
                if entry.verdict == "expired":
                    if entry.at < question.expires_at:
                        yield f"{entry.question} expired at {entry.at}, before {question.expires_at}"
                elif said is None or (said.question, f"{said.action}d"[:6]) != (entry.question, entry.verdict[:6]):
                    yield f"{entry.question} was {entry.verdict}, but the log has no such answer"
                if entry.verdict == "answered" and not fits(question, entry.input):
                    yield f"{entry.question} was answered with {entry.input!r}, which is not a valid answer"
                if entry.verdict == "expired" and entry.input != question.default:
                    yield f"{entry.question} expired with {entry.input!r}; expected its default"
                if question.about == "task" and entry.verdict != "approved" and question.task_id is not None:
                    refused.add(question.task_id)
            case TaskDispatched() | RetryScheduled():
                begun.add(entry.task_id)
                if any(question.task_id == entry.task_id for question in open_.values()):
                    yield f"{entry.task_id} was dispatched while a person was asked about it"
                if entry.task_id in refused:
                    yield f"{entry.task_id} was dispatched without its approval"
            case PlanAccepted():
                if any(question.about == "plan" for question in open_.values()):
                    yield f"the plan {entry.revision} was accepted while a person was asked about it"
                # A new plan drops the tasks that have not started, together with their approvals.
                open_ = {name: each for name, each in open_.items() if each.task_id in begun}
            case TaskAbandoned():
                open_ = {name: each for name, each in open_.items() if each.task_id != entry.task_id}
            case WorkflowEnded():
                open_ = {}
            case TaskReopened():
                refused.discard(entry.task_id)
            case WorkflowResumed():
                refused -= set(entry.tasks)
            case _:
                pass


def _spending(entries: Sequence[Entry]) -> Iterator[str]:
    """Check that the sum of used and reserved calls never exceeds the limit. Each simulated agent makes one call."""
    started = entries[0]
    if started.kind != "workflow_started":
        return
    given = [started.limits.calls, started.budget.calls if started.budget else None]
    bound = min((calls for calls in given if calls is not None), default=None)
    used, aside, judged = 0, dict[str, int](), set[str]()
    for entry in entries:
        match entry:
            case TaskDispatched() | RetryScheduled():
                aside[entry.task_id] = (entry.budget.calls or 0) if entry.budget else 0
                if bound is not None and not aside[entry.task_id]:
                    yield f"{entry.task_id} was dispatched without a budget"
            case ReviewRequested():
                judged.add(entry.event_id)
                aside.pop(entry.task_id, None)
                used += entry.result.usage.calls
            case TaskSucceeded() | AttemptFailed():
                aside.pop(entry.task_id, None)
                used += entry.result.usage.calls if entry.result and entry.event_id not in judged else 0
            case TaskAbandoned() | BudgetAwaited():
                aside.pop(entry.task_id, None)
            case WorkflowResumed():  # the limits apply to each round
                used = 0
            case _:
                pass
        if bound is not None and used + sum(aside.values()) > bound:
            yield f"{used} calls used and {sum(aside.values())} set aside of {bound} allowed calls"
            return
