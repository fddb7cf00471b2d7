"""Builders for the workflow core, and `WorkflowDriver`, which runs one workflow by hand and checks it at every step.

A driver has the log, the state and the time. Each step asserts that the entries fold, that a snapshot restores the
state, that each message of the outbox has a unique subject, and that the outbox is deterministic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeVar

from pointsman.core.decide import make_decision
from pointsman.core.decision import DecisionContext
from pointsman.core.evolve import apply_commit
from pointsman.core.model.agent_health import Circuit, Load
from pointsman.core.model.inputs import Admission, ControlReceived, Input, RequestReceived, ResultReceived, TimerFired
from pointsman.core.model.lifecycle import Phase, TaskStatus
from pointsman.core.model.messages import Message
from pointsman.core.model.state import State, Task, from_snapshot, to_snapshot
from pointsman.core.outbox import outbox
from pointsman.core.replay.decision_context import record_context, summarize_cards
from pointsman.core.tasks.dispatch import RESULT_GRACE
from pointsman_schemas.card import AgentCard, Role
from pointsman_schemas.events import AttemptError, Control, Handoff, Outcome, Request, Result, Usage
from pointsman_schemas.ids import attempt_token
from pointsman_schemas.log import Commit, Entry, TraceOrigin
from pointsman_schemas.strict_json import dump, parse
from pointsman_schemas.subjects import Subjects
from pointsman_schemas.team import Check, Limits, Pipeline, PlanAndExecute, RetryPolicy, Stage, Strategy, Team

__all__ = [
    "SECRET",
    "SUBJECTS",
    "T0",
    "WORKFLOW",
    "WorkflowDriver",
    "admission",
    "card",
    "cards",
    "failure",
    "judged_stage",
    "messages",
    "plan",
    "selection",
    "task",
]

T0 = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)
WORKFLOW = "wf_1"
SUBJECTS = Subjects()
SECRET = "7f3c"

EntryT = TypeVar("EntryT")


def card(name: str, **given: Any) -> AgentCard:
    return AgentCard(name=name, description=f"does what {name} does", **given)


def cards(*names: str) -> tuple[AgentCard, ...]:
    return tuple(card(name) for name in names)


def task(
    id: str,
    agent: str = "worker",
    needs: Sequence[str] = (),
    optional: Sequence[str] = (),
    intent: str = "",
    skill: str = "",
) -> dict[str, Any]:
    """Return a task as a planner writes it."""
    return {
        "id": id,
        **({"skill": skill} if skill else {"agent": agent}),
        "intent": intent or f"do the work of {id}",
        "depends_on": list(needs),
        "optional_dependencies": list(optional),
    }


def plan(*tasks: dict[str, Any], **given: Any) -> dict[str, Any]:
    """Return a plan as a planner writes it."""
    return {"goal": "serve the request", "tasks": list(tasks), "final_instruction": "be brief", **given}


def selection(*chosen: tuple[str, float], question: str = "") -> dict[str, Any]:
    """Return the answer of a classifier."""
    return {"agents": [{"agent": agent, "confidence": sure} for agent, sure in chosen], "question": question}


def failure(kind: str = "provider_error", *, retryable: bool = False, retry_after: float | None = None) -> AttemptError:
    return AttemptError(kind=kind, message=f"{kind} was seen", retryable=retryable, retry_after=retry_after)


def admission(
    strategy: Strategy, limits: Limits, agents: Literal["*"] | tuple[str, ...] = "*", **given: Any
) -> Admission:
    return Admission(
        workflow_id=WORKFLOW,
        request_id="request-1",
        correlation_id="correlation-1",
        team=Team(name="team", agents=agents, strategy=strategy, limits=limits, **given),
        trace=TraceOrigin(trace_id="0af7651916cd43dd8448eb211c80319c", span_id="b7ad6b7169203331"),
        caller="ada",
        secret=SECRET,
    )


def messages(state: State) -> list[Message]:
    return list(outbox(state, SUBJECTS))


@dataclass
class WorkflowDriver:
    """One workflow, starting with its request. A test may change `cards` and `now` between steps."""

    strategy: Strategy = field(default_factory=PlanAndExecute)
    limits: Limits = field(default_factory=Limits)
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    cards: tuple[AgentCard, ...] = field(default_factory=lambda: cards("worker", "other"))
    agents: Literal["*"] | tuple[str, ...] = "*"
    refiner: str | None = "refiner"
    judge: str | None = "judge"
    circuits: Mapping[str, Circuit] = field(default_factory=dict)
    loads: Mapping[str, Load] = field(default_factory=dict)
    now: datetime = T0
    commits: list[Commit] = field(default_factory=list)
    current: State | None = None

    @property
    def state(self) -> State:
        assert self.current is not None
        return self.current

    @property
    def outcome(self) -> Outcome:
        assert self.state.outcome is not None, f"the workflow is still {self.state.phase}"
        return self.state.outcome

    @property
    def log(self) -> list[Entry]:
        return [entry for commit in self.commits for entry in commit.entries]

    def entries_of(self, kind: type[EntryT]) -> list[EntryT]:
        """Return the log's entries of one kind."""
        return [entry for entry in self.log if isinstance(entry, kind)]

    def kinds(self) -> list[str]:
        return [entry.kind for entry in self.log]

    def task(self, task_id: str) -> Task:
        return self.state.tasks[task_id]

    def statuses(self) -> dict[str, str]:
        """Return the status of each task of the plan."""
        return {each.id: each.status.value for each in self.state.plan_tasks()}

    def handoff(self, task_id: str) -> Handoff:
        """Return the handoff of the task's current attempt, decoded from its message."""
        found = [each.event for each in messages(self.state) if isinstance(each.event, Handoff)]
        return next(handoff for handoff in found if handoff.task_id == task_id)

    def handoff_input(self, task_id: str) -> dict[str, Any]:
        """Return the input of the task's current attempt, which must be an object."""
        given = self.handoff(task_id).input
        assert isinstance(given, dict), f"the input of {task_id} is {given!r}; expected an object"
        return given

    # Steps

    def decide_and_apply(self, *inputs: Input) -> tuple[Entry, ...]:
        """Decide on `inputs` together and commit the entries."""
        context = DecisionContext(self.now, self.cards, self.circuits, loads=self.loads)
        decision = make_decision(self.current, inputs, context)
        entries = tuple(decision.entries)
        if entries:
            number = len(self.commits) + 1
            commit = Commit(
                number=number, entries=entries, decision_context=record_context(decision, summarize_cards(self.cards))
            )
            assert parse(Commit, dump(commit)) == commit
            self.commits.append(commit)
            self.current = apply_commit(self.current, commit)
            check_step(self.current)
        return entries

    def start(self, input: str | dict[str, Any] = "do it", **given: Any) -> WorkflowDriver:
        admitted = admission(
            self.strategy, self.limits, self.agents, retry=self.retry, refiner=self.refiner, judge=self.judge
        )
        self.decide_and_apply(RequestReceived(admitted, Request(input=input, **given)))
        return self

    def planned(self, *tasks: dict[str, Any]) -> WorkflowDriver:
        """Start the workflow and deliver a plan with these tasks."""
        self.start()
        self.complete_task("plan-1", plan(*tasks))
        return self

    def result(
        self,
        task_id: str,
        output: Any = None,
        /,
        *,
        error: AttemptError | None = None,
        status: Literal["succeeded", "failed", "refused"] | None = None,
        **changes: Any,
    ) -> ResultReceived:
        """Return the agent's result for the task's current attempt, with the fields of `changes`."""
        given = self.state.tasks.get(task_id)
        fields: dict[str, Any] = {
            "workflow_id": WORKFLOW,
            "task_id": task_id,
            "attempt": max(given.attempt, 1) if given else 1,
            "agent": (given.agent if given else "") or "worker",
            "status": status or ("failed" if error else "succeeded"),
            "output": output,
            "error": error,
            "usage": Usage(calls=1, input_tokens=100, output_tokens=10, cost=0.25),
            "started_at": self.now,
            "ended_at": self.now + timedelta(seconds=2),
        }
        event_id = changes.pop("event_id", f"result-{task_id}-{fields['attempt']}")
        token = changes.pop("token", None)
        result = Result.model_validate({**fields, **changes})
        own = attempt_token(self.state.secret, result.task_id, result.attempt)
        return ResultReceived(event_id, result, own if token is None else token)

    def complete_task(self, task_id: str, output: Any = None, /, **changes: Any) -> tuple[Entry, ...]:
        return self.decide_and_apply(self.result(task_id, {"from": task_id} if output is None else output, **changes))

    def fail_task(self, task_id: str, error: AttemptError | None = None, **changes: Any) -> tuple[Entry, ...]:
        return self.decide_and_apply(self.result(task_id, error=error or failure(), **changes))

    def control(self, action: str, **given: Any) -> tuple[Entry, ...]:
        event_id, actor = given.pop("event_id", f"control-{action}"), given.pop("actor", "ada")
        control = Control.model_validate({"action": action, **given})
        return self.decide_and_apply(ControlReceived(event_id, control, actor))

    def wait(self, seconds: float) -> WorkflowDriver:
        self.now += timedelta(seconds=seconds)
        return self

    def fire_timer(self) -> tuple[Entry, ...]:
        """Advance the time until the armed timer is due, and fire the timer."""
        assert self.state.timer_due is not None
        self.now = max(self.now, self.state.timer_due)
        return self.decide_and_apply(TimerFired(self.state.timer))


def judged_stage() -> WorkflowDriver:
    """Return a started pipeline with the single stage `write`, which a judge reviews."""
    stages = Pipeline(stages=(Stage(agent="write", check=Check(judge="reviewer")),))
    return WorkflowDriver(strategy=stages, cards=(card("write"), card("reviewer", role=Role.JUDGE))).start()


def check_step(state: State) -> None:
    """Assert the invariants that hold in every state."""
    assert from_snapshot(to_snapshot(state)) == state
    sent = messages(state)
    assert len({message.subject for message in sent}) == len(sent)
    assert len({message.id for message in sent}) == len(sent)
    assert messages(state) == sent
    for message in sent:
        if isinstance(message.event, Handoff):
            assert message.event.attempt == state.tasks[message.event.task_id].attempt
            assert message.subject == SUBJECTS.handoff(
                message.event.to_agent, state.team, WORKFLOW, message.event.task_id, message.event.attempt
            )
    assert state.open_tasks == sum(1 for each in state.plan_tasks() if not each.settled)
    if state.phase is Phase.RUNNING:
        assert state.questions or any(each.active or each.held for each in state.tasks.values()), (
            "a running workflow has no question and no active or held task"
        )
        for each in state.plan_tasks():
            if each.status is TaskStatus.WAITING:
                assert any(not state.tasks[name].settled for name in each.depends_on), (
                    f"{each.id} is WAITING, but all its dependencies are settled"
                )
    if state.ended:
        assert all(each.settled for each in state.tasks.values())
    else:
        assert state.timer_due is not None
        if state.phase in (Phase.PLANNING, Phase.RUNNING) and not state.questions:
            assert state.timer_due <= state.deadline + RESULT_GRACE, "no timer is due by the deadline"
