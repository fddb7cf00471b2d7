"""Teams that are one file each, over the in-memory bus, with the offline model."""

from __future__ import annotations

import pytest
from pydantic import JsonValue

from pointsman.agent import agent
from pointsman.testing import run_team, running_team
from pointsman_agents import market_analysis, tech_support
from pointsman_agents.classifier import classifier
from pointsman_agents.planner import planner
from pointsman_agents.reports import contract, curriculum, portfolio
from pointsman_agents.synthesizer import synthesizer
from pointsman_schemas.card import Role
from pointsman_schemas.log import PlanAccepted

SUPPORT = (tech_support.troubleshooter, tech_support.documenter, tech_support.escalator, classifier, synthesizer)


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POINTSMAN_MODEL", "offline")


@pytest.mark.parametrize(
    ("request_", "agent", "said"),
    [
        (tech_support.SAMPLE_REQUEST, "troubleshooter", "give each call a timeout"),
        ("How do I set up a virtual environment?", "documenter", "python -m venv"),
        ("How can I export a report to Excel?", "documenter", "xlsx"),
        ("I want to talk to a human", "escalator", "Ticket "),
        ("Blorp the quux?", "documenter", "No guide fits this"),
    ],
)
async def test_support_goes_to_who_can_help_and_else_to_the_guides(request_: str, agent: str, said: str) -> None:
    outcome = await run_team(tech_support.team, SUPPORT, request_)

    assert [task.agent for task in outcome.tasks if task.agent not in ("classifier", "synthesizer")] == [agent]
    assert said in str(outcome.answer)


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (portfolio.SAMPLE_REQUEST, ["PF-1 is worth $30,000.00", "buy 20 bonds, sell 4 gold"]),
        ("Value portfolio PF-2 and propose the trades that rebalance it", ["$40,000.00", "no trade is needed"]),
        ("Value portfolio PF-9", ["there is no portfolio PF-9"]),
    ],
)
async def test_trades_are_computed_from_what_is_held(request_: str, said: list[str]) -> None:
    outcome = await run_team(portfolio.team, (portfolio.valuation, portfolio.trades, planner, synthesizer), request_)

    assert [each for each in said if each not in str(outcome.answer)] == []


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (contract.SAMPLE_REQUEST, ["missing: Confidentiality, Governing law", "unlimited", "90 days, more than 60"]),
        ("List the clauses of contract CT-2 and assess its risks", ["missing: none", "Risks of CT-2: none found"]),
    ],
)
async def test_clauses_and_risks_are_found_in_the_text(request_: str, said: list[str]) -> None:
    outcome = await run_team(contract.team, (contract.clauses, contract.risks, planner, synthesizer), request_)

    assert [each for each in said if each not in str(outcome.answer)] == []


async def test_routing_that_cannot_be_read_falls_back_to_the_guides() -> None:
    @agent(name="classifier", description="Answers with what is no selection", role=Role.CLASSIFY)
    async def mumbling(given: dict[str, JsonValue]) -> JsonValue:
        return "the troubleshooter, I would say"

    outcome = await run_team(tech_support.team, (*SUPPORT[:3], mumbling, synthesizer), tech_support.SAMPLE_REQUEST)

    assert "documenter" in [task.agent for task in outcome.tasks]
    assert "troubleshooter" not in [task.agent for task in outcome.tasks]


@pytest.mark.parametrize(
    ("top", "said", "unsaid"),
    [("3", "Contoso: $800 billion, +60.0%", "Tailspin:"), ("1", "Northwind: $900 billion, +20.0%", "Contoso:")],
)
async def test_a_market_is_gathered_and_analysed_side_by_side_then_written(top: str, said: str, unsaid: str) -> None:
    cast = (market_analysis.researcher, market_analysis.analyst, market_analysis.writer, planner, synthesizer)
    async with running_team(market_analysis.team, cast) as client:
        workflow = await client.submit("market-analysis", market_analysis.SAMPLE_REQUEST.replace("3", top))
        outcome = await workflow.outcome(10)
        (accepted,) = [entry for entry in await client.entries(workflow.id) if isinstance(entry, PlanAccepted)]

    assert outcome.status == "completed"
    tasks = {task.agent: task for task in accepted.plan.tasks}
    assert tasks["researcher"].depends_on == tasks["analyst"].depends_on == ()
    assert set(tasks["writer"].depends_on) == {tasks["researcher"].id, tasks["analyst"].id}
    assert "## Figures" in str(outcome.answer)
    assert "cheapest for data analysis" in str(outcome.answer)
    assert said in str(outcome.answer)
    assert unsaid not in str(outcome.answer)


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (curriculum.SAMPLE_REQUEST, ["sets, probability, tests, regression", "27 hours at 6 a week are 5 weeks"]),
        (
            "Order the modules of databases, and schedule the weeks at 4 hours a week",
            ["tables, queries", "are 4 weeks"],
        ),
    ],
)
async def test_modules_are_ordered_by_what_they_require(request_: str, said: list[str]) -> None:
    cast = (curriculum.sequence, curriculum.schedule, planner, synthesizer)

    outcome = await run_team(curriculum.team, cast, request_)

    assert [each for each in said if each not in str(outcome.answer)] == []
