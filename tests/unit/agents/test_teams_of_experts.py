"""The experts and the generalist over the in-memory bus, with the offline model."""

from __future__ import annotations

import pytest

from pointsman.testing import run_team, running_team
from pointsman_agents import experts, generalist
from pointsman_agents.planner import planner
from pointsman_agents.synthesizer import synthesizer
from pointsman_schemas.events import Outcome
from pointsman_schemas.log import PlanAccepted

EXPERTS = (experts.legal, experts.medical, experts.technical, experts.financial, experts.classifier, synthesizer)
GENERALIST = (generalist.research, generalist.writing, generalist.code, planner, synthesizer)
ROLES = {"planner", "classifier", "synthesizer"}


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POINTSMAN_MODEL", "offline")


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


async def test_an_unclear_question_goes_to_the_fallback_which_does_not_pretend_to_know() -> None:
    outcome = await run_team(experts.team, EXPERTS, "Blorp the quux?")

    assert workers(outcome) == ["technical"]
    assert "say nothing about this" in str(outcome.answer)


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


async def test_who_writes_has_facts_though_nobody_asked_for_them() -> None:
    outcome = await run_team(generalist.team, GENERALIST, "Write a blog post about sorting algorithms")

    assert workers(outcome) == ["research", "writing"]
    assert "Sorting algorithms: 2 things to know" in str(outcome.answer)


async def test_without_facts_nothing_is_made_up() -> None:
    outcome = await run_team(generalist.team, GENERALIST, "Write a blog post about medieval bagpipes")

    assert "Nothing was written" in str(outcome.answer)
    assert "things to know" not in str(outcome.answer)
