"""The teams for technical support and market analysis on the memory bus, with the offline model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pydantic import JsonValue

from pointsman.authoring.agent import agent
from pointsman.core.views.trace import TraceNode
from pointsman.testing import run_team, running_team
from pointsman_agents import market_analysis, tech_support
from pointsman_agents.planner import planner
from pointsman_agents.synthesizer import synthesizer
from pointsman_schemas.card import Role
from pointsman_schemas.events import Outcome
from pointsman_schemas.log import PlanAccepted

SUPPORT = (tech_support.troubleshooter, tech_support.documenter, tech_support.escalator, planner, synthesizer)
MARKET = (market_analysis.researcher, market_analysis.analyst, market_analysis.writer, planner, synthesizer)


def workers(outcome: Outcome) -> list[str]:
    return [task.agent for task in outcome.tasks if task.role == Role.WORK]


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POINTSMAN_MODEL", "offline")


@pytest.mark.parametrize(
    ("request_", "agents", "said"),
    [
        (tech_support.SAMPLE_REQUEST, ["troubleshooter"], ["give each call a timeout"]),
        (
            "My script keeps timing out, and I want to talk to a human",
            ["troubleshooter", "escalator"],
            ["give each call a timeout", "Ticket "],
        ),
        (
            "My script keeps timing out. How can I export a report to Excel? I want to talk to a human.",
            ["troubleshooter", "documenter"],
            [
                "give each call a timeout",
                "xlsx",
                'This needs a request of its own, as one has at most 2 tasks: "I want to talk to a human".',
            ],
        ),
        ("Blorp the quux?", ["documenter"], ["No guide fits this"]),
    ],
)
async def test_support_uses_a_secondary_agent_only_if_needed(request_: str, agents: list[str], said: list[str]) -> None:
    outcome = await run_team(tech_support.team, SUPPORT, request_)

    assert outcome.status == "completed"
    assert workers(outcome) == agents
    assert [each for each in said if each not in str(outcome.answer)] == []


async def test_routing_that_cannot_be_read_falls_back_to_the_guides() -> None:
    @agent(name="planner", description="Answers with text that is not a plan", role=Role.PLAN)
    async def mumbling(given: dict[str, JsonValue]) -> JsonValue:
        return "the troubleshooter, I would say"

    cast = (*SUPPORT[:3], mumbling, synthesizer)
    outcome = await run_team(tech_support.team, cast, "How can I export a report to Excel?")

    assert workers(outcome) == ["documenter"]
    assert "xlsx" in str(outcome.answer)


@pytest.mark.parametrize(
    ("top", "said", "unsaid"),
    [("3", "Contoso: $800 billion, +60.0%", "Tailspin:"), ("1", "Northwind: $900 billion, +20.0%", "Contoso:")],
)
async def test_a_market_is_gathered_in_parallel_then_analysed_then_written(top: str, said: str, unsaid: str) -> None:
    async with running_team(market_analysis.team, MARKET) as client:
        workflow = await client.submit("market-analysis", market_analysis.SAMPLE_REQUEST.replace("3", top))
        outcome = await workflow.outcome(10)
        (accepted,) = [entry for entry in await client.entries(workflow.id) if isinstance(entry, PlanAccepted)]

    assert outcome.status == "completed"
    assert [(task.id, task.agent, task.depends_on) for task in accepted.plan.tasks] == [
        ("t1", "researcher", ()),
        ("t2", "researcher", ()),
        ("t3", "researcher", ()),
        ("t4", "analyst", ("t1", "t2", "t3")),
        ("t5", "writer", ("t1", "t2", "t3", "t4")),
    ]
    assert "## Figures" in str(outcome.answer)
    assert "most of the market" in str(outcome.answer)
    assert "storage shrinks" in str(outcome.answer)
    assert "cheapest for data analysis" in str(outcome.answer)
    assert said in str(outcome.answer)
    assert unsaid not in str(outcome.answer)


async def test_an_analyst_answers_with_figures_of_the_companies_that_were_found() -> None:
    outcome = await run_team(market_analysis.team, MARKET, "What are the growth rates of the top 4 companies?")

    assert workers(outcome) == ["researcher", "analyst"]
    assert "Tailspin: $90 billion, -10.0% in a year" in str(outcome.answer)


def test_a_report_without_findings_is_not_written() -> None:
    assert market_analysis.format_document([], []).summary.startswith("Nothing was written")
    assert "Market report" in market_analysis.format_document([], ["One is the cheapest."]).summary


async def test_market_analysis_agents_share_no_tools() -> None:
    owned = [tool for agent in MARKET[:3] for tool in await agent._tools()]
    assert sorted(owned) == sorted({"web_search", "scrape_page", "calculate", "query_database", "format_document"})

    async with running_team(market_analysis.team, MARKET) as client:
        workflow = await client.submit("market-analysis", market_analysis.SAMPLE_REQUEST)
        await workflow.outcome(10)
        trace = await client.trace(workflow.id)

    assert sorted({(node.agent, node.name) for node in _walk(trace) if node.kind == "tool"}) == [
        ("analyst", "execute_tool calculate"),
        ("analyst", "execute_tool query_database"),
        ("researcher", "execute_tool scrape_page"),
        ("researcher", "execute_tool web_search"),
        ("writer", "execute_tool format_document"),
    ]


def _walk(node: TraceNode) -> Iterator[TraceNode]:
    yield node
    for child in node.children:
        yield from _walk(child)
