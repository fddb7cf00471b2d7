"""Make recorded decisions again with the current code, and report the differences.

The inputs of a decision are restored from its entries. The other facts are restored from the commit's decision context.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal

from pointsman.core.decide import decide
from pointsman.core.evolve import apply_commit, evolve
from pointsman.core.model.inputs import (
    Admission,
    ControlReceived,
    Input,
    RequestReceived,
    RequestRefused,
    ResultReceived,
    TimerFired,
)
from pointsman.core.model.state import State, in_review
from pointsman.core.replay.decision_context import AgentCards, restore_context
from pointsman_schemas.events import Control, Request, Result
from pointsman_schemas.ids import attempt_token
from pointsman_schemas.log import (
    Commit,
    Entry,
    ResultIgnored,
    WorkflowEnded,
    WorkflowStarted,
)
from pointsman_schemas.team import Team
from pointsman_schemas.threads import ThreadPolicy

__all__ = ["Difference", "replay_log"]


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between a recorded decision and the decision of the current code.

    Attributes:
        entry: The number of the entry in the log, from 1.
        commit: The number of the commit of that entry.
        expected: The recorded entry; None if the current code makes more entries than the log has.
        actual: The entry of the current code; None if the current code makes fewer entries than the log has.
    """

    entry: int
    commit: int
    expected: Entry | None
    actual: Entry | None


def replay_log(commits: Iterable[Commit]) -> Iterator[Difference]:
    """Make each decision of a log again.

    Each decision starts from the recorded state, so an earlier difference has no effect on a later decision. A commit
    without a decision context is skipped, because its decision cannot be made again.

    Args:
        commits: The commits of the log, in order.

    Yields:
        The first difference of each commit that has a difference.

    Raises:
        InvariantError: The log does not fold.
    """
    state: State | None = None
    agents: AgentCards = ()
    number = 0
    for commit in commits:
        if (given := commit.decision_context) is not None:
            agents = agents if given.agents is None else given.agents
            context = restore_context(given, agents, commit.entries, commit.entries[0].at)
            inputs = (*_inputs_of_entries(state, commit.entries), *map(TimerFired, given.fired_timers or ()))
            differing = _first_difference(commit.entries, decide(state, inputs, context))
            if differing is not None:
                place, expected, got = differing
                yield Difference(number + place, commit.number, expected, got)
        state = apply_commit(state, commit)
        number += len(commit.entries)


def _first_difference(there: Sequence[Entry], made: Sequence[Entry]) -> tuple[int, Entry | None, Entry | None] | None:
    pairs = enumerate(zip_longest(there, made), 1)
    return next(((place, expected, got) for place, (expected, got) in pairs if expected != got), None)


def _inputs_of_entries(state: State | None, entries: Sequence[Entry]) -> Iterator[Input]:
    for entry in entries:
        match entry.kind:
            case "workflow_started":
                yield _request_input(entry, entries)
            case "task_succeeded" | "attempt_failed" if in_review(state, entry.task_id):
                pass  # the input was the judge's result, which is restored from the entry of the judge's own task
            case "task_succeeded" | "review_requested":
                yield _with_token(state, entry.event_id, entry.result)
            case "attempt_failed" if entry.result is not None:
                yield _with_token(state, entry.event_id, entry.result)
            case "result_ignored":
                yield _ignored_input(state, entry)
            case "workflow_resumed":
                resume = Control(action="resume", round=entry.round - 1, reason=entry.reason)
                yield ControlReceived(entry.event_id, resume, entry.by)
            case "task_reopened":
                yield ControlReceived(entry.event_id, Control(action="replay", task_id=entry.task_id), entry.by)
            case "question_answered" if entry.verdict != "expired":
                answer = Control(
                    action=_ACTIONS[entry.verdict], question=entry.question, input=entry.input, reason=entry.reason
                )
                yield ControlReceived(entry.event_id, answer, entry.by)
            case "message_received":
                yield ControlReceived(entry.event_id, Control(action="tell", text=entry.text), entry.by)
            case "control_ignored":
                ignored = {"action": entry.action, "question": entry.question, "input": entry.input}
                yield ControlReceived(entry.event_id, Control.model_validate(ignored), "")
            case "workflow_ended" if entry.cancellation is not None:
                control = Control(action="cancel", reason=entry.cancellation.reason)
                yield ControlReceived("cancel", control, entry.cancellation.by)
            case _:
                pass
        state = evolve(state, entry)


_ACTIONS: dict[str, Literal["approve", "reject", "answer"]] = {
    "approved": "approve",
    "rejected": "reject",
    "answered": "answer",
}
"""The action with which a person gives each verdict."""


def _request_input(started: WorkflowStarted, entries: Sequence[Entry]) -> RequestReceived | RequestRefused:
    team = Team(
        name=started.team,
        agents=started.agents,
        strategy=started.strategy,
        limits=started.limits,
        retry=started.retry,
        approve_plan=started.approve_plan,
        refiner=started.refiner,
        judge=started.judge,
        threads=ThreadPolicy(summarizer=started.summarizer),
    )
    admission = Admission(
        workflow_id=started.workflow_id,
        request_id=started.request_id,
        correlation_id=started.correlation_id,
        team=team,
        trace=started.trace,
        caller=started.caller,
        secret=started.secret,
        parent=started.parent,
        depth=started.depth,
        digest=started.request_digest,
        thread=started.thread,
        history=started.history,
        messages=started.messages,
    )
    last = entries[-1]
    if isinstance(last, WorkflowEnded) and last.refusal is not None:
        return RequestRefused(admission, last.refusal, started.reply_to)
    request = Request(
        input=started.input,
        deadline=(started.deadline - started.at).total_seconds(),
        budget=started.budget,
        metadata=started.metadata,
        files=started.files,
        reply_to=started.reply_to,
    )
    return RequestReceived(admission, request, started.ignored_fields)


def _ignored_input(state: State | None, entry: ResultIgnored) -> ResultReceived:
    """Return a substitute for an ignored result. The log omits the content, because no decision used the content."""
    own = state.workflow_id if state is not None else ""
    result = Result(
        workflow_id=entry.workflow_id or own,
        task_id=entry.task_id,
        attempt=entry.attempt,
        agent=entry.agent,
        status="succeeded",
        started_at=entry.at,
        ended_at=entry.at,
    )
    return _with_token(state, entry.event_id, result)


def _with_token(state: State | None, event_id: str, result: Result) -> ResultReceived:
    secret = state.secret if state is not None else ""
    return ResultReceived(event_id, result, attempt_token(secret, result.task_id, result.attempt))
