"""A finished decision is made again by the present code: where the two differ, the code has changed its mind.

A log holds what was decided, not what was decided upon. The inputs of each commit follow from its entries (a result
stands in the entry that counted it), the time from when they were made, the agents alive from what planners were told.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice, zip_longest

from pydantic import JsonValue

from pointsman.core.circuits import Circuit
from pointsman.core.decide import decide
from pointsman.core.evolve import apply
from pointsman.core.inputs import (
    Admission,
    Circumstances,
    ControlReceived,
    Input,
    RequestReceived,
    RequestRefused,
    ResultReceived,
    TimerFired,
)
from pointsman.core.state import State, Task, in_review
from pointsman.core.tree import taken
from pointsman_schemas.card import AgentCard, Role
from pointsman_schemas.events import AttemptError, Control, ErrorKind, Request, Result
from pointsman_schemas.log import (
    AllowanceAwaited,
    ApprovalDecided,
    ApprovalRequested,
    AttemptFailed,
    Commit,
    ControlIgnored,
    Entry,
    LimitReached,
    PlanAccepted,
    PlanRejected,
    ResultIgnored,
    RetryScheduled,
    ReviewAsked,
    TaskAbandoned,
    TaskAdded,
    TaskDispatched,
    TaskFailed,
    TaskHeld,
    TaskReopened,
    TaskSucceeded,
    WorkflowEnded,
    WorkflowStarted,
)
from pointsman_schemas.team import Router, Supervisor, Team

__all__ = ["Difference", "rehearse"]

_SHORTEST = 0.001  # seconds: what a timeout is taken to be where an attempt's deadline was in the past already
_CANCELLED = re.compile(r"cancelled(?: by (?P<by>.*?))?(?:: (?P<reason>.*))?", re.DOTALL)

_LONG = timedelta(days=1)  # longer than any circuit stays open
_FALLBACK_TOO = re.compile(r"; its fallback (\S+) keeps failing, too, and is sent no work$")

_STANDS_IN = re.compile(r"; (\S+) keeps failing, \S+ stands in$")
_NOT_ONE_OF = re.compile(r"names the agent .*, which is not one of: (.+)$", re.MULTILINE)  # of a name nobody has
_TOO_MANY = re.compile(r"tasks was passed: (?P<event>\S+) would make (?P<count>\d+)$")


@dataclass(frozen=True, slots=True)
class Difference:
    """The `entry`-th of the log, from 1, in its `commit`-th commit, and what the present code decides in its place.
    None for an entry that only the other has."""

    entry: int
    commit: int
    expected: Entry | None
    got: Entry | None


def rehearse(commits: Iterable[Commit], results: Mapping[str, Result] | None = None) -> Iterator[Difference]:
    """The first difference of each commit; each is judged on the log as it is, whatever the ones before would be now.

    `results` are results by event id, for those that were ignored: the log does not hold them.

    Raises:
        InvariantError: the log does not fold.
    """
    state: State | None = None
    menu: dict[str, AgentCard] = {}
    number = 0
    commits = tuple(commits)
    teams = _teams(entry for commit in commits for entry in commit.entries)
    for commit in commits:
        menu = _menu(commit.entries) or menu
        inputs = tuple(_inputs(state, commit.entries, results or {}))
        cards = _cards(state, commit.entries, menu, teams)
        circuits, chosen = _circuits(state, commit.entries, cards), _chosen(commit.entries)
        around = Circumstances(commit.entries[0].at, cards, circuits, chosen=chosen)
        differing = _differing(commit.entries, decide(state, inputs, around))
        if differing is not None and inputs and inputs[-1] == TimerFired(state.timer if state else ""):
            # No entry says what came: it may as well have been something that meant nothing, at a time that did.
            other = _differing(commit.entries, decide(state, (TimerFired("an-older-one"),), around))
            differing = differing if other is not None else None
        if differing is not None:
            place, expected, got = differing
            yield Difference(number + place, commit.number, expected, got)
        state = apply(state, commit)
        number += len(commit.entries)


def _differing(there: Sequence[Entry], made: Sequence[Entry]) -> tuple[int, Entry | None, Entry | None] | None:
    pairs = enumerate(zip_longest(there, made), 1)
    return next(((place, expected, got) for place, (expected, got) in pairs if expected != got), None)


def _inputs(state: State | None, entries: Sequence[Entry], results: Mapping[str, Result]) -> Iterator[Input]:
    heard = False
    for entry in entries:
        made: Input | None = None
        match entry:
            case WorkflowStarted():
                made = _request(entry, entries)
            case TaskSucceeded() | AttemptFailed() if in_review(state, entry.task_id):
                pass  # it follows from what the judge said
            case TaskSucceeded() | ReviewAsked():
                made = ResultReceived(entry.event_id, entry.result)
            case AttemptFailed(result=Result() as result):
                made = ResultReceived(entry.event_id, result)
            case ResultIgnored():
                made = ResultReceived(entry.event_id, results.get(entry.event_id) or _ignored(state, entry))
            case TaskReopened():
                control = Control(action="replay", task_id=entry.task_id, by=entry.by)
                made = ControlReceived(entry.event_id, control)
            case ApprovalDecided(verdict="approved" | "rejected" as verdict):
                action = "approve" if verdict == "approved" else "reject"
                answer = Control(
                    action=action, approval=entry.approval, input=entry.input, reason=entry.reason, by=entry.by
                )
                made = ControlReceived(entry.event_id, answer)
            case ControlIgnored():
                ignored = {"action": entry.action, "approval": entry.approval, "input": entry.input}
                made = ControlReceived(entry.event_id, Control.model_validate(ignored))
            case WorkflowEnded() if entry.outcome.status == "cancelled":
                said = _CANCELLED.fullmatch(entry.outcome.reason)
                by, reason = (said["by"] or "", said["reason"] or "") if said else ("", "")
                made = ControlReceived("cancel", Control(action="cancel", by=by, reason=reason))
            case _:
                pass
        if made is not None:
            heard = True
            yield made
    if not heard and state is not None:
        yield TimerFired(state.timer)


def _request(started: WorkflowStarted, entries: Sequence[Entry]) -> RequestReceived | RequestRefused:
    team = Team(name=started.team, agents=started.agents, strategy=started.strategy, limits=started.limits,
                approve_plan=started.approve_plan, refiner=started.refiner, judge=started.judge)  # fmt: skip
    admission = Admission(
        workflow_id=started.workflow_id,
        request_id=started.request_id,
        correlation_id=started.correlation_id,
        team=team,
        trace=started.trace,
        parent=started.parent,
        depth=started.depth,
    )
    last = entries[-1]
    if started.input == "" and isinstance(last, WorkflowEnded):
        message = last.outcome.reason.partition(": ")[2]
        return RequestRefused(admission, AttemptError(kind=ErrorKind.UNDECODABLE, message=message))
    request = Request(
        input=started.input,
        deadline=(started.deadline - started.at).total_seconds(),
        budget=started.budget,
        metadata=started.metadata,
        reply_to=started.reply_to,
    )
    return RequestReceived(admission, request)


def _ignored(state: State | None, entry: ResultIgnored) -> Result:
    """Something in the place of a result that nobody kept: what it said played no part."""
    foreign = entry.reason.removeprefix("it belongs to the workflow ")
    workflow = foreign if foreign != entry.reason else state.workflow_id if state else ""
    return Result(
        workflow_id=workflow,
        task_id=entry.task_id,
        attempt=entry.attempt,
        agent=entry.agent,
        status="succeeded",
        started_at=entry.at,
        ended_at=entry.at,
    )


def _menu(entries: Iterable[Entry]) -> dict[str, AgentCard]:
    """The agents that a planner or classifier was told of: those that were alive."""
    found: dict[str, AgentCard] = {}
    for entry in entries:
        if isinstance(entry, TaskAdded) and isinstance(entry.input, dict):
            items: JsonValue = entry.input.get("agents")
            for item in items if isinstance(items, list) else ():
                card = AgentCard.model_validate(item)
                found[card.name] = card
    return found


def _teams(entries: Iterable[Entry]) -> set[str]:
    """The agents that were teams: they were handed something as such, or waited for what only teams need."""
    return {
        entry.agent
        for entry in entries
        if (isinstance(entry, TaskDispatched | RetryScheduled) and entry.team)
        or (isinstance(entry, AllowanceAwaited) and entry.limit == "tasks")
    }


def _cards(
    state: State | None, entries: Sequence[Entry], menu: Mapping[str, AgentCard], teams: Collection[str]
) -> tuple[AgentCard, ...]:
    """The menu, with what the entries tell of each agent: how long it may take, and who stands in for it."""
    cards = dict(menu)
    takes: dict[str, float] = {}
    gone: set[str] = set()

    def known(name: str) -> AgentCard:  # of whom no planner was told: one of the roles, which are on no menu
        return cards.get(name) or AgentCard(name=name, description="", role=Role.SYNTHESIZE)

    def works(name: str, event: str = "", skill: str = "") -> None:
        card = known(name)
        reacts = tuple(sorted({*card.reacts_to, *filter(None, (event,))}))
        skills = tuple(dict.fromkeys((*card.skills, *filter(None, (skill,)))))
        cards[name] = card.model_copy(update={"role": Role.WORK, "reacts_to": reacts, "skills": skills})

    def took(name: str, start: datetime, deadline: datetime) -> None:
        # The workflow's deadline may have cut it short: the longest of them is what it may take.
        takes[name] = max(takes.get(name, _SHORTEST), (deadline - start).total_seconds())
        cards[name] = known(name).model_copy(update={"timeout": takes[name]})

    for name in teams:
        cards[name] = known(name).model_copy(update={"role": Role.WORK, "team": True})
    accepted = [entry for entry in entries if isinstance(entry, PlanAccepted)]
    for each in sorted(accepted, key=lambda each: -len(each.plan.tasks)):  # agents react in the order of their cards
        for planned in each.plan.tasks:
            if planned.agent:
                works(planned.agent, each.event, planned.skill)
    for entry in entries:
        match entry:
            case TaskAdded(role=Role.PLAN | Role.CLASSIFY) if not menu and not (state and state.begun):
                if (there := _not_on_the_menu(state, entries)) is not None:
                    cards[there] = AgentCard(name=there, description="", team=True)
            case TaskDispatched():
                took(entry.agent, entry.at, entry.deadline)
                card = cards[entry.agent]
                said = {"fallback": entry.fallback or card.fallback, "team": entry.team}
                cards[entry.agent] = card.model_copy(update=said)
                if entry.instead_of is not None:
                    other = known(entry.instead_of)
                    cards[other.name] = other.model_copy(update={"fallback": entry.agent})
                gone.update(_unknown(entry))
            case PlanRejected() if told := _NOT_ONE_OF.search("\n".join(entry.problems)):
                alive = [] if told[1].startswith("none: ") else told[1].split(", ")
                cards = {name: card for name, card in cards.items() if name in alive}
                cards |= {name: AgentCard(name=name, description="") for name in alive if name not in cards}
            case TaskFailed() if (told := _FALLBACK_TOO.search(entry.error.message)) is not None:
                cards[told[1]] = known(told[1])
            case ApprovalRequested(about="task", agent=str() as name):
                cards[name] = known(name).model_copy(update={"approval": "required"})
            case RetryScheduled():
                took(entry.agent, entry.not_before, entry.deadline)
                gone.update(_unknown(entry))
            case LimitReached() if (told := _TOO_MANY.search(entry.detail)) is not None:
                for name in _reacting_too(state, entries, cards.values(), told["event"], int(told["count"])):
                    works(name, told["event"])
            case AllowanceAwaited() if state is not None and (task := state.tasks.get(entry.task_id)):
                if entry.agent != task.agent:
                    cards[entry.agent] = known(entry.agent)  # its fallback, which was there to take it
            case AttemptFailed(result=None) if state is not None and (task := state.tasks.get(entry.task_id)):
                if entry.error.kind == ErrorKind.NO_WORKER:
                    gone.add(task.agent)
                else:
                    cards[task.agent] = known(task.agent)
            case TaskAbandoned() if state is not None and (task := state.tasks.get(entry.task_id)):
                if entry.team and not task.team:
                    gone.add(task.agent)  # nobody knew it: it might have been a team
                elif task.role is Role.WORK and task.agent:
                    cards[task.agent] = known(task.agent)
            case _:
                pass
    return tuple(card for name, card in cards.items() if name not in gone)


def _unknown(entry: TaskDispatched | RetryScheduled) -> Iterator[str]:
    """Who got a task and was not alive: it might have been a team, and got what one gets."""
    if entry.allowance is not None and entry.allowance.tasks is not None and not entry.team:
        yield entry.agent


def _not_on_the_menu(state: State | None, entries: Sequence[Entry]) -> str | None:
    """Who may have been there, though a workflow began with nobody on its menu: else it had waited."""
    started = next((entry for entry in entries if isinstance(entry, WorkflowStarted)), state)
    if started is None:
        return None
    strategy, named = started.strategy, () if started.agents == "*" else started.agents
    fallback = strategy.fallback if isinstance(strategy, Supervisor | Router) else None
    return fallback or next(iter(named), None)


def _reacting_too(
    state: State | None, entries: Iterable[Entry], cards: Iterable[AgentCard], event: str, count: int
) -> Iterator[str]:
    """As many more agents as must react to `event` for `count` tasks; nobody was told which, for none got its task."""
    agents = state.agents if state is not None else "*"
    tasks = taken(state).tasks if state is not None else 0
    for entry in entries:
        match entry:
            case WorkflowStarted():
                agents = entry.agents
            case PlanAccepted():
                tasks += len(entry.plan.tasks)
            case _:
                pass
    reacting = {card.name for card in cards if event in card.reacts_to}
    names = agents if agents != "*" else tuple(f"agent-{number}" for number in range(count))
    return islice((name for name in names if name not in reacting), max(count - tasks - len(reacting), 0))


def _chosen(entries: Iterable[Entry]) -> dict[str, str]:
    """Who got each task that went to somebody."""
    found: dict[str, str] = {}
    for entry in entries:
        match entry:
            case TaskDispatched() | RetryScheduled() | AllowanceAwaited():
                found[entry.task_id] = entry.agent
            case ApprovalRequested(about="task", agent=str() as agent, task_id=str() as name):
                found[name] = agent
            case _:
                pass
    return found


def _circuits(state: State | None, entries: Sequence[Entry], cards: Sequence[AgentCard]) -> dict[str, Circuit]:
    """The agents that were sent no work: whom a planner was warned of, whose place another took, for whom a task is
    held. One that got a task all the same was probed with it."""
    at = entries[0].at
    tasks = state.tasks if state is not None else {}
    found: dict[str, Circuit] = {}

    def until(moment: datetime, *agents: str | None) -> None:
        found.update({agent: Circuit(since=at, until=moment) for agent in agents if agent})

    for entry in entries:
        match entry:
            case TaskAdded(input=dict() as given) if isinstance(menu := given.get("agents"), list):
                until(at + _LONG, *(str(item["name"]) for item in menu if isinstance(item, dict) and item.get("note")))
            case TaskDispatched(instead_of=str() as agent):
                until(at + _LONG, agent)
            case RetryScheduled() if (told := _STANDS_IN.search(entry.reason)) is not None:
                until(at + _LONG, told[1])
            case ApprovalRequested(about="task", agent=str() as stand_in, task_id=str() as name):
                named, _ = _asked_for(name, tasks.get(name), entries)
                until(at + _LONG, named if named != stand_in else None)
            case TaskFailed() if (told := _FALLBACK_TOO.search(entry.error.message)) is not None:
                until(at + _LONG, told[1])
            case _:
                pass
    for entry in entries:
        match entry:
            case TaskHeld():
                task = tasks.get(entry.task_id)
                named, skill = _asked_for(entry.task_id, task, entries)
                card = next((card for card in cards if card.name == named), None)
                other = task.fallback if task is not None and task.attempt else card.fallback if card else None
                skilled = [card.name for card in cards if skill and skill in card.skills]
                until(entry.until, named, other, *skilled)
            case _:
                pass
    for entry in entries:
        if isinstance(entry, TaskDispatched | RetryScheduled) and entry.agent in found:
            until(at, entry.agent)
    return found


def _asked_for(task_id: str, task: Task | None, entries: Iterable[Entry]) -> tuple[str | None, str]:
    """The agent and the skill of a task, which may be as new as `entries`."""
    for entry in entries:
        match entry:
            case TaskAdded() if entry.task_id == task_id:
                return entry.agent, ""
            case PlanAccepted():
                for planned in entry.plan.tasks:
                    if planned.id == task_id:
                        return planned.agent, planned.skill
            case _:
                pass
    return (task.agent, task.skill) if task is not None else (None, "")
