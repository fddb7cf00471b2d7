"""Teams that are one file each, over the in-memory bus, with the offline model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pydantic import JsonValue

from pointsman.agent import agent
from pointsman.core.trace import TraceNode
from pointsman.llm_agent import LLMAgent
from pointsman.testing import run_team, running_team
from pointsman_agents import market_analysis, tech_support
from pointsman_agents.planner import planner
from pointsman_agents.reports import competitive, contract, curriculum, launch, patient, portfolio
from pointsman_agents.synthesizer import synthesizer
from pointsman_schemas.card import Role
from pointsman_schemas.events import Outcome
from pointsman_schemas.log import PlanAccepted
from pointsman_schemas.team import Team

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
        ("How do I set up a virtual environment?", ["documenter"], ["python -m venv"]),
        ("How can I export a report to Excel?", ["documenter"], ["xlsx"]),
        ("I want to talk to a human", ["escalator"], ["Ticket "]),
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
async def test_support_has_a_primary_agent_and_a_secondary_one_only_where_it_is_needed(
    request_: str, agents: list[str], said: list[str]
) -> None:
    outcome = await run_team(tech_support.team, SUPPORT, request_)

    assert outcome.status == "completed"
    assert workers(outcome) == agents
    assert [each for each in said if each not in str(outcome.answer)] == []


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
        (
            {
                "request": "List the clauses and assess the risks",
                "text": "Termination: with 180 days notice. Liability: up to $5. Governing law: of Contoso.",
            },
            [
                "Clauses of the contract: Termination, Liability, Governing law; missing: Confidentiality.",
                "Risks of the contract: no clause on Confidentiality; notice of 180 days, more than 60.",
            ],
        ),
        ({"request": "Assess the risks", "text": "We are friends."}, ["the text has no clause"]),
        ("Assess the risks", ["no contract was given; name one, such as CT-1"]),
    ],
)
async def test_clauses_and_risks_are_found_in_the_text(request_: str | dict[str, JsonValue], said: list[str]) -> None:
    outcome = await run_team(contract.team, (contract.clauses, contract.risks, planner, synthesizer), request_)

    assert [each for each in said if each not in str(outcome.answer)] == []
    assert "Nobody here can help" not in str(outcome.answer)


async def test_routing_that_cannot_be_read_falls_back_to_the_guides() -> None:
    @agent(name="planner", description="Answers with what is no plan", role=Role.PLAN)
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


async def test_each_agent_of_a_market_analysis_uses_its_own_tools_and_no_two_have_one_in_common() -> None:
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


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (
            launch.SAMPLE_REQUEST,
            [
                "beta test by 2027-02-10",
                "announcement by 2027-03-13",
                "beta test, fixes, announcement moves",
                "33 days",
            ],
        ),
        ("Date the checklist for the launch on 2028-03-01", ["beta test by 2028-01-28", "website by 2028-02-21"]),
        ("Date the checklist for the launch on 2027-02-30", ["2027-02-30 is no day of the calendar"]),
    ],
)
async def test_steps_are_dated_back_from_the_launch(request_: str, said: list[str]) -> None:
    outcome = await run_team(launch.team, (launch.checklist, launch.critical, planner, synthesizer), request_)

    assert [each for each in said if each not in str(outcome.answer)] == []


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (
            patient.SAMPLE_REQUEST,
            ["2026-02-02 blood pressure 150/95; 2026-04-20", "PT-1, pairs checked 3: avolin + bentrix: both lower"],
        ),
        (
            patient.SAMPLE_REQUEST.replace("PT-1", "PT-2"),
            ["cough for two weeks", "PT-2, pairs checked 1: none is listed"],
        ),
        ("Summarize the history of patient PT-9", ["there is no patient PT-9"]),
    ],
)
async def test_interactions_are_found_among_the_drugs_of_the_case(request_: str, said: list[str]) -> None:
    outcome = await run_team(patient.team, (patient.history, patient.interactions, planner, synthesizer), request_)

    assert [each for each in said if each not in str(outcome.answer)] == []


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (
            competitive.SAMPLE_REQUEST,
            ["Northwind alone has audit log; Fabrikam alone has single sign-on", "Tailspin $175, Northwind $300, Fabr"],
        ),
        (
            "Compare our features with Tailspin and compare the prices for 5 seats",
            ["audit log, export; Tailspin alone has nothing", "5 seats, cheapest first: Fabrikam $75, Tailspin $75"],
        ),
    ],
)
async def test_rivals_are_compared_from_the_table(request_: str, said: list[str]) -> None:
    outcome = await run_team(
        competitive.team, (competitive.features, competitive.prices, planner, synthesizer), request_
    )

    assert [each for each in said if each not in str(outcome.answer)] == []


@pytest.mark.parametrize(
    ("team", "members"),
    [
        (launch.team, (launch.checklist, launch.critical)),
        (patient.team, (patient.history, patient.interactions)),
        (competitive.team, (competitive.features, competitive.prices)),
    ],
)
async def test_a_request_for_something_else_is_told_that_nobody_can_help(
    team: Team, members: tuple[LLMAgent, LLMAgent]
) -> None:
    outcome = await run_team(team, (*members, planner, synthesizer), "Bake a chocolate cake")

    assert outcome.status == "failed"
    assert "no agent here can help" in str(outcome.answer)


@pytest.mark.parametrize(
    ("team", "members", "request_"),
    [
        (launch.team, (launch.checklist, launch.critical), launch.SAMPLE_REQUEST),
        (patient.team, (patient.history, patient.interactions), patient.SAMPLE_REQUEST),
        (competitive.team, (competitive.features, competitive.prices), competitive.SAMPLE_REQUEST),
    ],
)
async def test_both_agents_of_a_report_do_their_part(
    team: Team, members: tuple[LLMAgent, LLMAgent], request_: str
) -> None:
    outcome = await run_team(team, (*members, planner, synthesizer), request_)

    assert outcome.status == "completed"
    assert {member.card.name for member in members} <= {task.agent for task in outcome.tasks}


@pytest.mark.parametrize(
    ("team", "members", "request_", "lacking"),
    [
        (
            launch.team,
            (launch.checklist, launch.critical),
            "Date the checklist for the launch",
            "cannot use date_checklist without launch (The day of the launch, such as 2027-03-15)",
        ),
        (
            competitive.team,
            (competitive.features, competitive.prices),
            "Compare our features with Acme",
            "cannot use compare_features without rival (Fabrikam, Tailspin)",
        ),
    ],
)
async def test_what_a_tool_needs_and_nobody_gave_is_named_and_nothing_is_made_up(
    team: Team, members: tuple[LLMAgent, LLMAgent], request_: str, lacking: str
) -> None:
    outcome = await run_team(team, (*members, planner, synthesizer), request_)

    assert outcome.status == "failed"
    assert str(outcome.answer).startswith("Could not help, because ")
    assert lacking in str(outcome.answer)
