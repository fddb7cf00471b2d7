"""The shipped teams on the memory bus, with the offline model. Each team shows the purpose of its strategy."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import factory

from pointsman.authoring.agent import Agent
from pointsman.client.client import Client
from pointsman.core.views.trace import TraceNode
from pointsman.testing.models import ScriptedModel, text_reply
from pointsman_agents import decomposer, engineering, perspectives, refund_events, refunds, service_desk
from pointsman_agents.planner import planner
from pointsman_agents.synthesizer import synthesizer
from pointsman_schemas.events import Outcome
from pointsman_schemas.log import Entry, PlanAccepted
from pointsman_schemas.team import Team


@pytest.fixture(autouse=True)
def _fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POINTSMAN_CUSTOMER_SERVICE_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("POINTSMAN_MODEL", "offline")


def teams_of(module: Any) -> list[Team]:
    return [value for value in vars(module).values() if isinstance(value, Team)]


def agents_of(module: Any) -> list[Agent]:
    own = [value for value in vars(module).values() if isinstance(value, Agent)]
    return [*own, *(role for role in (planner, synthesizer) if role.card.name not in {each.card.name for each in own})]


class Asked:
    """One request to a team and its result."""

    def __init__(self, outcome: Outcome, entries: list[Entry], tree: TraceNode) -> None:
        self.outcome = outcome
        self.entries = entries
        self.nodes = list(_walk(tree))

    @property
    def answer(self) -> str:
        return str(self.outcome.answer)

    @property
    def statuses(self) -> dict[str, str]:
        return {task.task_id: task.status for task in self.outcome.tasks}

    def plans(self) -> list[PlanAccepted]:
        return [entry for entry in self.entries if isinstance(entry, PlanAccepted)]


async def ask(module: Any, request: Any = None) -> Asked:
    async with factory.team(teams_of(module), agents_of(module)) as client:
        return await _ask(client, module.team, request or module.SAMPLE_REQUEST)


async def _ask(client: Client, team: Team, request: Any) -> Asked:
    workflow = await client.submit(team.name, request, correlation_id="order-7")
    outcome = await workflow.outcome(20)
    return Asked(outcome, list(await client.entries(workflow.id)), await client.trace(workflow.id))


def _walk(node: TraceNode) -> Iterator[TraceNode]:
    yield node
    for child in node.children:
        yield from _walk(child)


@pytest.mark.parametrize("module", [refunds, refund_events, perspectives, service_desk, decomposer, engineering])
def test_team_names_the_agents_it_needs(module: Any) -> None:
    there = {agent.card.name for agent in agents_of(module)} | {team.name for team in teams_of(module)}

    assert all(set(team.required_agents()) <= there for team in teams_of(module))
    assert importlib.import_module(module.__name__).team.name.replace("-", "_") == module.__name__.rpartition(".")[2]


async def test_a_refund_goes_through_four_stages_and_each_is_checked() -> None:
    asked = await ask(refunds)

    assert asked.outcome.status == "completed"
    assert asked.statuses == dict.fromkeys(
        ("extract_details", "verify_charges", "check_policy", "compose_response", "judge-compose_response"), "succeeded"
    )
    assert "The refund of charge ch-5003 over $49.00 is approved: it is a duplicate of ch-5002" in asked.answer


async def test_another_customer_gets_another_decision() -> None:
    asked = await ask(refunds, "I am customer C-1002, please refund ch-5011, I did not use it.")

    assert "ch-5011 over $199.00 is denied: it is 43 days old" in asked.answer


async def test_pipeline_stops_at_an_insufficient_stage_with_what_was_done() -> None:
    asked = await ask(refunds, "I am customer C-1003 and I was charged twice, refund me")

    assert asked.outcome.status == "partial"
    assert asked.outcome.reason.startswith("the stage verify_charges of 4 could not be done: the output lacks charges")
    assert "done before it: extract_details (" in asked.outcome.reason
    assert next(task.attempts for task in asked.outcome.tasks if task.task_id == "verify_charges") == 3


async def test_a_letter_with_an_invented_figure_is_returned_once_and_then_rejected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    letter = "Your refund of $49.00 for charge ch-5003 is approved, and will be there on 2026-12-24 for certain."
    invents = refunds.compose_response.with_model(ScriptedModel(text_reply(letter), text_reply(letter)))
    monkeypatch.setattr(refunds, "compose_response", invents)
    asked = await ask(refunds)

    assert asked.outcome.status == "partial"
    assert asked.outcome.reason.startswith(
        "the stage compose_response of 4 could not be done: "
        "reviewer rejected the output: 2026-12-24 stands in no result"
    )
    assert [node.name for node in asked.nodes if node.kind == "task"][-3:] == [
        "invoke_agent compose_response",
        "judge reviewer",
        "judge reviewer",
    ]


async def test_pipeline_stops_at_once_if_the_tool_of_a_stage_fails() -> None:
    asked = await ask(refunds, "I am customer C-9999 and I was charged twice, refund me")

    assert asked.outcome.status == "partial"
    assert "find_charges failed: there is no customer C-9999" in asked.outcome.reason
    assert next(task.attempts for task in asked.outcome.tasks if task.task_id == "verify_charges") == 1


async def test_duplicate_charge_starts_events_and_the_history_shows_the_reactions() -> None:
    asked = await ask(refund_events)

    reactions = [(task.agent, plan.event, task.depends_on) for plan in asked.plans() for task in plan.plan.tasks]
    assert reactions == [
        ("verification", "refund_asked", ()),
        ("policy", "charge_verified", ("verification-refund_asked",)),
        ("fraud", "refund_eligible", ("policy-charge_verified",)),
        ("notification", "refund_eligible", ("policy-charge_verified",)),
    ]
    assert (asked.outcome.status, asked.outcome.correlation_id) == ("completed", "order-7")
    assert "your refund of $49.00 for charge ch-5003 is on its way" in asked.answer


async def test_single_charge_triggers_the_policy_alone() -> None:
    asked = await ask(refund_events, "Please look at ch-5001.")

    assert list(asked.statuses) == ["verification-refund_asked", "policy-charge_verified"]
    assert "ch-5001 over $49.00 is denied" in asked.answer


async def test_panel_answers_in_parallel_and_its_disagreement_is_named() -> None:
    asked = await ask(perspectives)

    assert asked.outcome.status == "completed"
    assert {task.agent for task in asked.outcome.tasks} == {*perspectives.team.agents, "synthesizer"}
    assert "verdict: finance says go; demand says go; operations says wait; risk says wait" in asked.answer
    assert all(task.elapsed >= 0 for task in asked.outcome.tasks)


async def test_members_that_agree_have_no_disagreement() -> None:
    asked = await ask(perspectives, "What about P-102?")

    assert "112 customers ask for it" in asked.answer
    assert "disagree" not in asked.answer


async def test_nested_desks_and_specialists_are_one_trace() -> None:
    asked = await ask(service_desk)

    assert asked.outcome.status == "completed"
    assert {task.agent for task in asked.outcome.tasks} >= {"billing-team", "technical-team"}
    workflows = [node.name for node in asked.nodes if node.kind == "workflow"]
    assert workflows[0] == "invoke_workflow service-desk"
    assert set(workflows[1:]) == {"invoke_workflow billing-team", "invoke_workflow technical-team"}
    named = {node.name for node in asked.nodes}
    assert {"invoke_agent refund", "invoke_agent api", "invoke_agent integration"} <= named
    assert "ch-5003" in asked.answer
    assert "40 of 212 webhook deliveries failed" in asked.answer
    assert "No agent here can help" not in asked.answer


DEEP = "((((1 + 2) + 3) + 4) + 5) + 6"


@pytest.mark.parametrize(("request_", "answer"), [(decomposer.SAMPLE_REQUEST, "16"), (DEEP, "21")])
async def test_a_task_is_split_until_it_is_simple_or_three_levels_down(request_: str, answer: str) -> None:
    asked = await ask(decomposer, request_)

    assert (asked.outcome.status, asked.answer) == ("completed", answer)
    depth = max(_depth(node) for node in asked.nodes if node.kind == "publish")
    assert depth == 4
    assert sum(node.kind == "workflow" for node in asked.nodes) > 5


async def test_failure_of_a_subtask_is_stated_in_the_final_answer() -> None:
    asked = await ask(decomposer, "(1 + 2) * (3 / (2 - 2) + 1)")

    assert asked.answer == "It cannot be computed: 3 / 0 is a float division by zero"


def _depth(node: TraceNode) -> int:
    """Return the depth of nested workflows."""
    return (node.kind == "workflow") + max((_depth(child) for child in node.children), default=0)


async def test_engineers_change_their_plan_with_their_findings() -> None:
    asked = await ask(engineering)

    used = [task.agent for plan in asked.plans() for task in plan.plan.tasks]
    assert used == ["code", "ops", "comms"]
    assert asked.outcome.status == "completed"
    assert "payment_timeout is 2 and should be 10" in asked.answer


async def test_engineers_stop_at_the_first_bug_found() -> None:
    asked = await ask(engineering, "Find the bug in search, propose a fix, and draft a Slack note.")

    used = [task.agent for plan in asked.plans() for task in plan.plan.tasks]
    assert used == ["code", "comms"]
    assert "test_empty_query_returns_nothing fails" in asked.answer
