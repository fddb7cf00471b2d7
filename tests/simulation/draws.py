"""Random draws of a world: teams, requests and answers of people."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, Literal

from pointsman.testing.simulation import SimulatedClock
from pointsman_schemas.envelope import Envelope, encode, encode_structured
from pointsman_schemas.events import Request
from pointsman_schemas.log import QuestionAsked
from pointsman_schemas.plan import ForEach, Plan, PlannedTask
from pointsman_schemas.strict_json import JsonValue, dump
from pointsman_schemas.team import (
    Adaptive,
    Check,
    Choreography,
    FanOut,
    Fixed,
    Limits,
    Pipeline,
    PlanAndExecute,
    RetryPolicy,
    Router,
    Stage,
    Strategy,
    Team,
    ThreadPolicy,
)
from simulation.crew import WORKERS

__all__ = ["answers", "asking", "fits", "judged", "request", "talking", "teams"]


def teams(chance: Random, tasks: int) -> tuple[Team, Team | None]:
    """Return the team of the requests and, in some worlds, a second team for nested tasks."""
    writer = chance.choice(["synthesizer", "synthesizer", None])
    plan = PlanAndExecute(synthesizer=writer)
    router = Router(synthesizer=writer, fallback=chance.choice([None, "beta"]), escalate=plan)
    strategy = chance.choice([plan, plan, plan, router, *_others(chance, writer)])
    deadline, task_timeout = chance.choice([8.0, 25.0, 40.0]), chance.choice([5.0, 8.0])
    retry = RetryPolicy(attempts=chance.randint(1, 3), backoff=chance.choice([0.1, 1.0]))
    limits = Limits(
        deadline=deadline,
        task_timeout=task_timeout,
        replans=chance.choice([0, 0, 1, 2]),
        plan_repairs=chance.choice([0, 1, 2]),
        calls=chance.choice([None, None, 6]),
        tasks=tasks,
    )
    if chance.random() < 0.6:
        return Team(name="team", strategy=strategy, limits=limits, retry=retry), None
    below = chance.choice([plan, *_others(chance, writer)])
    return (
        Team(name="team", agents=("below", *WORKERS), strategy=strategy, limits=limits, retry=retry),
        Team(name="below", agents=WORKERS, strategy=below, limits=limits, retry=retry),
    )


def asking(team: Team, wait: float, *, plans: bool) -> Team:
    """Return `team` with approvals: for plans, or, with a fixed plan, for the first task."""
    limits, strategy = team.limits.model_copy(update={"answer_timeout": wait}), team.strategy
    if isinstance(strategy, Fixed):
        first, *others = strategy.plan.tasks
        tasks = (first.model_copy(update={"approval": "required"}), *others)
        strategy = strategy.model_copy(update={"plan": strategy.plan.model_copy(update={"tasks": tasks})})
    if isinstance(strategy, PlanAndExecute | Adaptive):
        strategy = strategy.model_copy(update={"may_ask": True})
    return team.model_copy(update={"limits": limits, "strategy": strategy, "approve_plan": plans})


def judged(team: Team, chance: Random) -> Team:
    """Return `team`. In most worlds the members of a fan-out get a check and a judge."""
    if not isinstance(team.strategy, FanOut):
        return team
    return team.model_copy(update={"strategy": team.strategy.model_copy(update={"check": _check(chance)})})


def answers(chance: Random, asked: QuestionAsked) -> list[tuple[Literal["approve", "reject", "answer"], JsonValue]]:
    """Return the answers of people to a question, in order."""
    yes: Literal["approve", "answer"] = "answer" if asked.about == "information" else "approve"
    given: JsonValue = (7 if fits(asked, 7) else "a") if yes == "answer" else None
    edited: dict[str, list[JsonValue]] = {
        "information": [7, "a", "b", None],
        "task": [{"request": "another"}],
        "tool": [{"amount": 7}, "not an object"],
        "plan": [asked.plan.model_dump(mode="json") if asked.plan else None, {"tasks": []}],
    }
    match chance.choices(["yes", "no", "nothing", "both", "edited", "thrice"], [4, 2, 2, 1, 2, 1])[0]:
        case "yes":
            return [(yes, given)]
        case "no":
            return [("reject", None)]
        case "nothing":
            return []
        case "both":
            return [("reject", None), (yes, given)]
        case "edited":
            return [(yes, chance.choice(edited[asked.about]))]
        case _:
            return [(yes, given)] * 3


def fits(asked: QuestionAsked, value: JsonValue) -> bool:
    """Return True if `value` is an answer to a question for information."""
    schema = asked.input_schema or {}
    if schema.get("type") == "integer":
        return isinstance(value, int)
    return isinstance(value, str) and value in schema.get("enum", [value])  # type: ignore[operator]


def _others(chance: Random, writer: str | None) -> list[Strategy]:
    """Return a strategy of each kind whose plan does not come from a planner alone."""
    stages = tuple(_stage(chance, agent) for agent in chance.sample(WORKERS, chance.randint(1, 3)))
    return [
        Adaptive(synthesizer=writer, max_plans=chance.randint(1, 4)),
        Pipeline(stages=stages),
        FanOut(
            synthesizer=writer,
            min_success_ratio=chance.choice([0.3, 1.0]),
            skills=chance.choice([(), (), (), ("craft", "none")]),
        ),
        Choreography(synthesizer=writer, end_events=chance.choice([(), ("over",)])),
        _fixed(chance, writer),
    ]


def _fixed(chance: Random, writer: str | None) -> Fixed:
    """Return a plan of up to four tasks. Some tasks have checks, their own retry policy, a condition or a list."""
    tasks: list[PlannedTask] = []
    expressions = Random()
    expressions.setstate(chance.getstate())  # a copy of the generator, so that other worlds keep their draws
    for number in range(chance.randint(1, 4)):
        needs = tuple(each.id for each in tasks if chance.random() < 0.5)
        tasks.append(
            PlannedTask(
                id=f"t{number}",
                agent=chance.choice(WORKERS),
                intent="do a part of it",
                depends_on=needs,
                retry=chance.choice([None, RetryPolicy(attempts=chance.randint(1, 4), backoff=0.2)]),
                **_expressions(expressions, needs),
            )
        )
    checks = {tasks[0].id: _check(chance)} if chance.random() < 0.3 else {}
    return Fixed(plan=Plan(tasks=tuple(tasks)), checks=checks, synthesizer=writer)


def _expressions(chance: Random, needs: Sequence[str]) -> dict[str, Any]:
    """Return a condition, a list or fields for a task that depends on `needs`."""
    if not needs or chance.random() < 0.4:
        return {}
    source = chance.choice(needs)
    lists = ForEach(
        items=chance.choice([f"{source}.knowing", f"{source}.knowing", "request.rows", source]),
        min_success_ratio=chance.choice([0.3, 1.0]),
    )
    return chance.choice(
        [
            {"when": f"{source}.done == '{chance.choice(needs)}'"},
            {"when": f"not {source}.knowing"},
            {"for_each": lists, "input_from": {"part": "item", "of": f"{source}.done"}},
            {"for_each": lists},
            {"for_each": lists, "when": f"{source}.knowing"},
            {"input_from": {"part": f"{source}.knowing.0"}},
        ]
    )


def _stage(chance: Random, agent: str) -> Stage:
    check = _check(chance)
    if chance.random() < 0.3:
        return Stage(skill="craft", name=agent, check=check)
    return Stage(agent=agent, check=check)


def _check(chance: Random) -> Check:
    return Check(
        fields=chance.choice([(), ("done",), ("done",), ("knowing",), ("nowhere",)]),
        judge=chance.choice([None, "reviewer", "reviewer"]),
    )


def _input(chance: Random, name: str) -> str | dict[str, JsonValue]:
    """Return a text, or an object with a list and inputs for tasks of a fixed plan. Some inputs may be missing."""
    text = f"please do {name}"
    inputs: dict[str, JsonValue] = {chance.choice(["t0", "t3"]): {"part": name}}
    with_inputs: dict[str, JsonValue] = {"request": text, "inputs": inputs, "rows": [1, {"part": 2}, "three"]}
    return with_inputs if chance.random() < 0.25 else text


def talking(team: Team, chance: Random) -> Team:
    """Return `team` with a policy for threads whose limits are so low that worlds reach them."""
    busy = chance.choice(["queue", "queue", "reject", "interrupt", "parallel"])
    bounds = {"turns": 2, "max_queued": chance.choice([1, 4]), "ttl": chance.choice([5.0, 3_600.0])}
    policy = ThreadPolicy.model_validate({"busy": busy, **bounds})
    return team.model_copy(update={"threads": policy})


def request(
    chance: Random, name: str, clock: SimulatedClock, thread: str | None = None
) -> tuple[dict[str, str], bytes]:
    """Return headers and body of a valid or an invalid request."""
    request = Request(input=_input(chance, name), deadline=chance.choice([None, None, 6.0]), thread=thread)
    body = dump(request)
    envelope = Envelope(id=name, type=Request.event_type, source="/caller", time=clock.now(), correlation_id="c")
    kinds = {"binary": 5.0, "structured": 2.0, "named": 2.0, "bare": 1.0, "broken": 0.6, "version": 0.4, "reply": 0.4}
    match chance.choices(list(kinds), list(kinds.values()))[0]:
        case "binary":
            return encode(envelope), body
        case "structured":
            return encode_structured(envelope, request.model_dump(mode="json"))
        case "named":
            return {"Nats-Msg-Id": name, "X-Own": "1"}, body
        case "bare":
            return {}, body
        case "broken":
            return chance.choice([encode(envelope), {}]), b'{"input": '
        case "version":
            return {**encode(envelope), "ce-type": "io.pointsman.request.v9"}, body
        case _:
            return encode(envelope), dump(request.model_copy(update={"reply_to": "sim.request.team.anonymous"}))
