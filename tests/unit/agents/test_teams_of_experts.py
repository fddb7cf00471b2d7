"""The experts, the front desk and the generalist on the memory bus, with the offline model."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pointsman.testing import run_team, running_team
from pointsman_agents import experts, front_desk, generalist
from pointsman_agents.classifier import classifier
from pointsman_agents.planner import planner
from pointsman_agents.synthesizer import synthesizer
from pointsman_schemas.card import Role
from pointsman_schemas.events import Outcome
from pointsman_schemas.log import PlanAccepted, TaskAdded, TaskSucceeded
from pointsman_schemas.plan import Selection
from pointsman_schemas.role_io import PlannerInput

EXPERTS = (experts.legal, experts.medical, experts.technical, experts.financial, experts.classifier, synthesizer)
DESK = (
    *(front_desk.billing, front_desk.technical, front_desk.account, front_desk.policy, front_desk.response),
    *(classifier, planner),
)
GENERALIST = (generalist.research, generalist.writing, generalist.code, planner, synthesizer)
ROLES = {"planner", "classifier", "synthesizer", "response"}


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("POINTSMAN_MODEL", "offline")
    monkeypatch.setenv("POINTSMAN_CUSTOMER_SERVICE_DATA", str(tmp_path))


def workers(outcome: Outcome) -> list[str]:
    return [task.agent for task in outcome.tasks if task.agent not in ROLES]


@pytest.mark.parametrize(
    ("question", "expert", "said"),
    [
        (experts.SAMPLE_REQUEST, "legal", "three months"),
        ("When should I see a doctor with a fever?", "medical", "39.5 C"),
        ("Why is my database query slow?", "technical", "an index"),
        ("Is the gain on my shares taxed?", "financial", "five years"),
    ],
)
async def test_a_question_goes_to_one_expert(question: str, expert: str, said: str) -> None:
    outcome = await run_team(experts.team, EXPERTS, question)

    assert outcome.status == "completed"
    assert workers(outcome) == [expert]
    assert said in str(outcome.answer)


async def test_unclear_question_goes_to_the_fallback() -> None:
    outcome = await run_team(experts.team, EXPERTS, "Blorp the quux?")

    assert workers(outcome) == ["technical"]
    assert "say nothing about this" in str(outcome.answer)


async def test_desk_drops_the_unsure_domain_and_answers_once() -> None:
    async with running_team(front_desk.team, DESK) as client:
        workflow = await client.submit("front-desk", front_desk.SAMPLE_REQUEST)
        outcome = await workflow.outcome(10)
        entries = await client.entries(workflow.id)

    (accepted,) = [entry for entry in entries if isinstance(entry, PlanAccepted)]
    found = next(e.result.output for e in entries if isinstance(e, TaskSucceeded) and e.task_id == "classify-1")
    selected = {each.agent: each.confidence for each in Selection.model_validate(found).agents}
    assert selected.keys() == {"billing", "technical", "account", "policy"}
    assert {agent for agent, confidence in selected.items() if confidence >= 0.4} == set(workers(outcome))
    asked = next(e.input for e in entries if isinstance(e, TaskAdded) and e.role is Role.PLAN)
    assert isinstance(asked, dict)
    offered = PlannerInput.model_validate({"request": "", **asked}).agents
    assert {item.name for item in offered} == set(workers(outcome))
    assert [(task.agent, task.depends_on) for task in accepted.plan.tasks] == [
        ("technical", ()),
        ("billing", ()),
        ("account", ()),
    ]
    assert outcome.status == "completed"
    assert [said for said in ("inc-301", "rf-5003", "locked") if said not in str(outcome.answer)] == []
    assert not re.search(r"\b(billing|technical|policy|response|agent|task)\b", str(outcome.answer), re.IGNORECASE)


async def test_desk_forwards_a_single_domain_and_reports_unserved_parts() -> None:
    async with running_team(front_desk.team, DESK) as client:
        one = await client.submit("front-desk", "I was charged twice", metadata={"customer_id": "C-1002"})
        both = await client.submit("front-desk", "I was charged twice, and write me a poem about the sea")
        straight, said = await one.outcome(10), await both.outcome(10)

    assert [task.agent for task in straight.tasks] == ["classifier", "billing"]
    assert "ch-5012" in str(straight.answer)
    assert workers(said) == ["billing"]
    assert 'No agent here can help with: "write me a poem about the sea"' in str(said.answer)


async def test_research_comes_first_and_writing_and_code_depend_on_it() -> None:
    async with running_team(generalist.team, GENERALIST) as client:
        workflow = await client.submit("generalist", generalist.SAMPLE_REQUEST)
        outcome = await workflow.outcome(10)
        (accepted,) = [entry for entry in await client.entries(workflow.id) if isinstance(entry, PlanAccepted)]

    assert outcome.status == "completed"
    needs = {task.agent: task.depends_on for task in accepted.plan.tasks}
    assert needs == {"research": (), "writing": ("t1",), "code": ("t1",)}
    assert "AI trends: 3 things to know" in str(outcome.answer)
    assert "Code for AI trends (2 statements)" in str(outcome.answer)


async def test_writer_gets_facts_that_the_request_does_not_ask_for() -> None:
    outcome = await run_team(generalist.team, GENERALIST, "Write a blog post about sorting algorithms")

    assert workers(outcome) == ["research", "writing"]
    assert "Sorting algorithms: 2 things to know" in str(outcome.answer)


async def test_without_facts_no_value_is_invented() -> None:
    outcome = await run_team(generalist.team, GENERALIST, "Write a blog post about medieval bagpipes")

    assert "Nothing was written" in str(outcome.answer)
    assert "things to know" not in str(outcome.answer)
