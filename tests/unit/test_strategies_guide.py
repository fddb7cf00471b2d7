"""The teams in the guide to strategies behave as the guide states, with agents that only answer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import pytest

from pointsman.authoring.agent import Agent, agent
from pointsman.authoring.context import Context
from pointsman.client.client import Client
from pointsman.errors import TaskError
from pointsman.testing import running_team
from pointsman_schemas.card import Role
from pointsman_schemas.events import Handoff, Outcome
from pointsman_schemas.ids import child_id_for
from pointsman_schemas.log import QuestionAsked, RetryScheduled, TaskDispatched
from pointsman_schemas.strategies import Strategy
from pointsman_schemas.strict_json import JsonValue
from pointsman_schemas.team import Team

GUIDE = (Path(__file__).parents[2] / "docs" / "strategies.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", GUIDE, re.DOTALL | re.MULTILINE)


def defined_in(section: str) -> dict[str, Any]:
    """Run the only block of a section of the guide. Return the names that it defines."""
    (text,) = [text for text in re.split(r"^## ", GUIDE, flags=re.MULTILINE) if text.startswith(f"{section}\n")]
    (block,) = [block for block in BLOCKS if block in text]
    defined: dict[str, Any] = {}
    exec(block, defined)
    return defined


def says(name: str, *answers: Any, heard: list[Handoff] | None = None, **card: Any) -> Agent:
    """Return an agent that gives its answers in order and repeats the last one. Answers that are errors are raised."""
    left = list(answers)

    @agent(name=name, description=f"Answers as {name}", **card)
    async def say(context: Context) -> Any:
        if heard is not None:
            heard.append(context.handoff)
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    return say


def doing(*names: str) -> list[Agent]:
    return [says(name, f"{name} is done") for name in names]


def plan(*agents: str, needs: Mapping[str, str] | None = None, **given: Any) -> dict[str, Any]:
    """Return a plan with one task for each agent, with the agent's name. `needs` has the dependencies."""
    tasks = [
        {
            "id": f"by-{name}",
            "agent": name,
            "intent": f"Have {name} do it",
            "depends_on": [f"by-{other}"] if other else [],
        }
        for name in agents
        for other in [(needs or {}).get(name)]
    ]
    return {"tasks": tasks, **given}


def planner(*plans: Any, heard: list[Handoff] | None = None) -> Agent:
    return says("planner", *plans, heard=heard, role=Role.PLAN)


def classifier(sure: Mapping[str, float], **given: Any) -> Agent:
    agents = [{"agent": name, "confidence": confidence} for name, confidence in sure.items()]
    return says("classifier", {"agents": agents, **given}, role=Role.CLASSIFY)


def reviewer(*verdicts: str) -> Agent:
    reviews = [{"verdict": verdict, "reason": "it promises money"} for verdict in verdicts]
    return says("reviewer", *reviews, role=Role.JUDGE)


def synthesizer(heard: list[Handoff] | None = None) -> Agent:
    return says("synthesizer", {"answer": "joined"}, heard=heard, role=Role.SYNTHESIZE)


async def play(
    teams: Team | Sequence[Team], agents: Sequence[Agent], request: str | dict[str, Any] = "Please do"
) -> tuple[Outcome, list[str]]:
    """Run a team. Return the outcome and the agents in order of their handoffs. A team precedes its agents."""
    first = teams if isinstance(teams, Team) else teams[0]
    async with running_team(teams, agents) as client:
        workflow = await client.submit(first.name, request)
        return await workflow.outcome(20), await handed(client, workflow.id)


async def handed(client: Client, workflow: str) -> list[str]:
    found: list[str] = []
    for entry in await client.entries(workflow):
        if isinstance(entry, TaskDispatched | RetryScheduled):
            found.append(entry.agent)
            if entry.team:
                found += await handed(client, child_id_for(entry.agent, workflow, entry.task_id, entry.attempt))
    return found


def asked(handoff: Handoff) -> dict[str, Any]:
    assert isinstance(handoff.input, dict)
    return handoff.input


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_defines_a_team_that_travels(block: str) -> None:
    defined: dict[str, Any] = {}

    exec(block, defined)

    team = defined["team"]
    assert Team.model_validate_json(team.model_dump_json()) == team


# Adaptive

ENGINEERS = ("data", "comms", "ops")


async def test_adaptive_team_is_planned_after_every_result() -> None:
    heard: list[Handoff] = []

    @agent(name="code", description="Reads code")
    async def code(context: Context) -> str:
        context.replan("it looks like configuration")
        return "no bug"

    plans = planner(plan("code"), plan("ops"), {"done": True}, heard=heard)
    crew = [plans, code, *doing(*ENGINEERS), synthesizer()]
    outcome, order = await play(defined_in("Adaptive")["team"], crew)

    assert (outcome.status, outcome.answer) == ("completed", "joined")
    assert order == ["planner", "code", "planner", "ops", "planner", "synthesizer"]
    second = asked(heard[1])
    assert {item["name"] for item in second["agents"]} == {"code", *ENGINEERS}
    assert second["agents_used"] == ["code"]
    assert [report["output"] for report in second["results"]] == ["no bug"]
    assert second["replan_reason"] == "code suggests a new plan: it looks like configuration"
    assert [asked(handoff)["remaining_plans"] for handoff in heard] == [7, 6, 5]


# Router

DESK = ("billing", "technical", "account")


async def test_one_that_the_router_is_sure_of_answers_by_itself() -> None:
    sure = classifier({"billing": 0.9, "technical": 0.39})
    outcome, order = await play(defined_in("Router")["team"], [sure, *doing(*DESK), planner(plan()), synthesizer()])

    assert (outcome.status, outcome.answer) == ("completed", "billing is done")
    assert order == ["classifier", "billing"]


# Pipeline

LETTER = "Dear customer, the second charge of November was made by mistake, and so it is paid back to you."


async def test_each_pipeline_stage_is_checked_and_judged() -> None:
    written: list[Handoff] = []
    crew = [
        says("extract_details", {"customer_id": ""}, {"customer_id": "C-1001"}),
        says("check_policy", "The refund is Approved."),
        says("compose_response", "Dear customer.", LETTER, LETTER, heard=written),
        reviewer("again", "pass"),
    ]
    outcome, order = await play(defined_in("Pipeline")["team"], crew)

    assert (outcome.status, outcome.answer) == ("completed", LETTER)
    assert order == [
        *["extract_details"] * 2, "check_policy", *["compose_response"] * 2, "reviewer", "compose_response", "reviewer",
    ]  # fmt: skip
    assert [handoff.feedback for handoff in written] == [
        "",
        "the output has 14 characters; at least 80 are expected",
        "reviewer returned the output: it promises money",
    ]
    assert {report.task_id: report.output for report in written[0].context} == {
        "extract_details": {"customer_id": "C-1001"},
        "check_policy": "The refund is Approved.",
    }


# Fan-out


async def test_enough_members_answer_and_their_conflicts_are_named() -> None:
    told: list[Handoff] = []
    members = [
        says("optimist", {"verdict": "yes", "confidence": 0.9}),
        says("skeptic", {"verdict": "no", "confidence": 0.4}),
        says("economist", TaskError("the figures are away")),
    ]
    outcome, order = await play(defined_in("Fan-out")["team"], [*members, synthesizer(heard=told)])

    assert (outcome.status, outcome.answer) == ("partial", "joined")
    assert order == ["optimist", "skeptic", "economist", "synthesizer"]
    assert asked(told[0])["conflicts"] == ["verdict: optimist says yes; skeptic says no"]
    assert [(gap.agent, gap.reason) for gap in outcome.gaps] == [("economist", "the figures are away")]
    assert [task.agent for task in outcome.tasks if task.elapsed] == order


# Choreography


async def test_agents_react_to_events_until_a_terminal_one() -> None:
    heard: list[Handoff] = []
    block = defined_in("Choreography")

    @agent(name="notification", description="Writes to the customer", reacts_to=["refund_eligible"])
    async def notification(charge: dict[str, Any], context: Context) -> str:
        heard.append(context.handoff)
        await context.emit("refunded", {"charge": charge["charge"]})
        return "written"

    crew = [block["policy"], notification]
    outcome, order = await play(block["team"], crew, {"charge": "ch-2", "duplicate": True})
    quiet, alone = await play(block["team"], crew, {"charge": "ch-3", "duplicate": False})

    assert (outcome.status, outcome.answer, order) == ("completed", {"charge": "ch-2"}, ["policy", "notification"])
    (handoff,) = heard
    assert (handoff.event, handoff.intent) == ("refund_eligible", "React to refund_eligible from policy")
    assert [report.output for report in handoff.context] == ["eligible"]
    assert (quiet.status, quiet.answer, alone) == ("completed", "not eligible", ["policy"])


# Fixed plan


async def test_a_fixed_plan_runs_as_it_is_written_with_the_inputs_of_the_request() -> None:
    heard: list[Handoff] = []
    crew = [
        says("ledger", ["I-1", "I-2"], heard=heard),
        says("bank", ["P-1"], heard=heard),
        says("matcher", {"paid": ["I-1"]}, {"unpaid": ["I-2"]}),
        says("clerk", "reminded", heard=heard),
    ]
    request: dict[str, Any] = {"month": "2026-05", "inputs": {"payments": {"account": "A-1"}}}
    async with running_team(defined_in("Fixed plan")["team"], crew) as client:
        workflow = await client.submit("month-end", request)
        async for event in workflow.events():
            if isinstance(event, QuestionAsked):
                await client.operations.approve(event.question)
                break
        outcome, order = await workflow.outcome(20), await handed(client, workflow.id)

    assert sorted(order[:2]) == ["bank", "ledger"]
    assert order[2:] == ["matcher", "matcher", "clerk"]
    assert outcome.status == "completed"
    assert outcome.answer == {
        "invoices": ["I-1", "I-2"], "payments": ["P-1"], "match": {"unpaid": ["I-2"]}, "remind": "reminded",
    }  # fmt: skip
    inputs = {handoff.task_id: handoff.input for handoff in heard}
    assert inputs["payments"] == {"currency": "EUR", "account": "A-1"}
    assert inputs["invoices"] == inputs["remind"] == {"month": "2026-05"}
    assert [report.task_id for report in heard[-1].context] == ["match"]


async def test_a_request_with_an_input_for_no_task_of_the_fixed_plan_is_refused() -> None:
    team = defined_in("Fixed plan")["team"]
    outcome, order = await play(team, doing("ledger", "bank", "matcher", "clerk"), {"inputs": {"payment": {}}})

    assert (outcome.status, order) == ("failed", [])
    assert outcome.reason == (
        "the request has inputs for payment; the tasks of the plan are invoices, payments, match, remind"
    )


# Known graphs


async def test_a_known_graph_branches_and_checks_each_invoice() -> None:
    heard: list[Handoff] = []
    invoices: list[JsonValue] = [{"id": number} for number in range(3)]
    crew = [
        says("ledger", {"invoices": invoices, "unpaid": 0}),
        says("auditor", "fine", "fine", "fine", heard=heard),
        *doing("clerk"),
        says("writer", "all is fine"),
    ]
    team = defined_in("Conditions, lists and fields")["team"]

    outcome, order = await play(team, crew, {"month": "2026-05"})

    assert sorted(order) == ["auditor", "auditor", "auditor", "ledger", "writer"]
    assert outcome.status == "completed"
    assert isinstance(outcome.answer, dict)
    assert outcome.answer["check"] == ["fine", "fine", "fine"]
    assert [handoff.input for handoff in sorted(heard, key=lambda each: each.task_id)] == [
        {"invoice": invoice, "country": None} for invoice in invoices
    ]
    reasons = {task.task_id: task.reason for task in outcome.tasks if task.status == "skipped"}
    assert reasons["remind"].startswith("its condition is false: list.unpaid > 0")


async def test_a_request_without_the_fields_of_the_schema_is_refused() -> None:
    team = defined_in("Conditions, lists and fields")["team"]

    outcome, order = await play(team, doing("ledger", "auditor", "clerk", "writer"), {"country": "NO"})

    assert (outcome.status, order) == ("failed", [])
    assert outcome.reason.endswith("$: 'month' is a required property")


# Skills


async def test_work_of_a_skill_is_shared() -> None:
    block = defined_in("Agents with the same skill")
    crew = [block[name] for name in ("planner", "careful", "hasty")]
    outcome, order = await play(block["team"], crew, "one|two|three|four")

    assert (outcome.status, order) == ("completed", ["planner", *["careful", "hasty"] * 2])
    by_hasty = {"page-1": "hasty: two", "page-3": "hasty: four"}
    assert outcome.answer == {"page-0": "careful: one", "page-2": "careful: three", **by_hasty}


# Teams of teams


async def test_a_router_before_a_supervisor_before_a_pipeline() -> None:
    block = defined_in("Teams of teams")
    found: list[Handoff] = []
    crew = [
        classifier({"support": 0.9}),
        planner(plan("account", "refunds", needs={"refunds": "account"})),
        *doing("account", "sales", "verify_charges"),
        says("compose_response", TaskError("the letters are out of paper"), heard=found),
        synthesizer(),
    ]
    outcome, order = await play([block[name] for name in ("team", "support", "refunds")], crew)

    assert order == [
        "classifier", "support", "planner", "account", "refunds", "verify_charges", "compose_response", "synthesizer",
    ]  # fmt: skip
    assert (outcome.status, outcome.answer) == ("partial", "joined")
    (gap,) = outcome.gaps
    assert gap.reason == "by-refunds of support: compose_response of refunds: the letters are out of paper"
    assert (found[0].depth, found[0].from_agent) == (2, "refunds")


def test_every_strategy_is_in_the_table() -> None:
    union = get_args(Strategy)[0]

    assert [f"`{kind.__name__}`" for kind in get_args(union)] == re.findall(r"^\| (`[A-Z]\w+`) \|", GUIDE, re.MULTILINE)
