"""If two teams have agents with the same name, each team's tasks go to its own agent. A shared queue is reported."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import ValidationError
from structlog.testing import capture_logs
from support import factory
from support.factory import FAST, SETTINGS, synthesizer
from support.waiting import until

from pointsman.authoring.agent import Agent, agent
from pointsman.authoring.code_digest import code_digest
from pointsman.authoring.llm_agent import LLMAgent
from pointsman.authoring.team_agent import TeamAgent
from pointsman.bus.memory.bus import MemoryBroker
from pointsman.client.client import Client
from pointsman.core.views.trace import build_trace
from pointsman.engine.process import agent_versions
from pointsman.engine.process.agent_versions import ROLLING_UPDATE, live_revisions, mixed_queue
from pointsman.errors import ConfigurationError
from pointsman_schemas.card import AgentCard
from pointsman_schemas.log import TaskSucceeded
from pointsman_schemas.plan import Plan, PlannedTask
from pointsman_schemas.strategies import Adaptive, Check, FanOut, Fixed, Pipeline, PlanAndExecute, Router, Stage
from pointsman_schemas.team import Team

NOW = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)


def lookup(answer: str, team: str | None = None) -> Agent:
    @agent(name="lookup", description="Looks things up", team=team)
    async def look_up(request: str) -> str:
        return answer

    return look_up


def pipeline(name: str, **given: Any) -> Team:
    return Team(name=name, strategy=Pipeline(stages=(Stage(agent="lookup"),)), **given)


@pytest.mark.asyncio
async def test_teams_with_agents_of_one_name_do_not_share_a_queue() -> None:
    teams = [
        pipeline("billing", own_agents=("lookup",)),
        pipeline("shipping", own_agents=("lookup",)),
        pipeline("shop"),
    ]
    workers = [lookup("an invoice", "billing"), TeamAgent(lookup("a parcel"), "shipping"), lookup("a price")]
    async with factory.team(teams, workers, settled=True) as client:
        answers = {
            team.name: {str((await (await client.submit(team.name, "x")).outcome(20)).answer) for _ in range(4)}
            for team in teams
        }
        names = [card.name for card in await client.operations.agents()]

    assert answers == {"billing": {"an invoice"}, "shipping": {"a parcel"}, "shop": {"a price"}}
    assert sorted(names) == ["billing--lookup", "lookup", "shipping--lookup"]


@pytest.mark.asyncio
async def test_team_of_any_agent_uses_its_own_and_shared_agents_and_no_others() -> None:
    offered: list[str] = []

    async def complete(client: Client, name: str) -> None:
        workflow = await client.submit(name, "x")
        await workflow.outcome(20)
        offered.extend(entry.agent for entry in await client.entries(workflow.id) if entry.kind == "task_dispatched")

    team = Team(name="billing", strategy=FanOut(synthesizer=None))
    async with factory.team(
        team, [lookup("1", "billing"), lookup("2", "shipping"), factory.echo("shared")], settled=True
    ) as client:
        await complete(client, "billing")

    assert sorted(offered) == ["billing--lookup", "shared"]


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (PlanAndExecute(planner="a", fallback="b"), {"billing--a", "billing--b", "synthesizer"}),
        (Adaptive(planner="a", synthesizer="b"), {"billing--a", "billing--b"}),
        (
            Router(classifier="a", fallback="b", escalate=PlanAndExecute(planner="b")),
            {"billing--a", "billing--b", "synthesizer"},
        ),
        (
            Pipeline(stages=(Stage(agent="a", check=Check(judge="b")), Stage(agent="c"))),
            {"billing--a", "billing--b", "c"},
        ),
        (
            Fixed(
                plan=Plan(tasks=(PlannedTask(id="t", agent="a", intent="do the work of t"),)),
                checks={"t": Check(judge="b")},
            ),
            {"billing--a", "billing--b"},
        ),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_own_names_are_full_names_wherever_a_team_names_agents(strategy: Any, expected: set[str]) -> None:
    team = Team(name="billing", agents="*", own_agents=("a", "b"), strategy=strategy, judge="a")

    assert set(team.required_agents()) == expected
    assert team.judge == "billing--a"
    assert Team.model_validate(team.model_dump()) == team


def test_team_cannot_use_the_agent_of_another_team() -> None:
    with pytest.raises(ValidationError, match="belongs to the team shipping"):
        Team(name="billing", agents=("shipping--lookup",))
    with pytest.raises(ValidationError, match="the name within the team"):
        Team(name="billing", own_agents=("billing--lookup",))
    with pytest.raises(ValidationError, match="did you mean lookup"):
        Team(name="billing", agents=("lookup",), own_agents=("lokup",))


def test_two_hyphens_in_a_name_and_other_teams_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="team='billing', name='lookup'"):
        agent(name="billing--lookup", description="x")(lambda request: request)
    with pytest.raises(ConfigurationError, match="belongs to the team shipping"):
        TeamAgent(lookup("x", "shipping"), "billing")
    with pytest.raises(ConfigurationError, match="58 are allowed"):
        TeamAgent(lookup("x"), "b" * 60)
    with pytest.raises(ValidationError, match="must begin with billing--"):
        AgentCard(name="lookup", description="x", owner="billing")


def test_digest_differs_by_code_and_not_by_process() -> None:
    def other(text: str) -> str:
        return text

    same = [lookup("one").card.digest, lookup("one").card.digest]
    different = {same[0], lookup("two").card.digest, code_digest(other), code_digest(test_names_one), ""}

    assert same[0] == same[1]
    assert len(different) == 5
    assert lookup("one").card.revision == f"1.0.0+{same[0][:8]}"


def test_names_one() -> None:
    """This is also a second function of this file, for the test of digests above."""
    assert code_digest(len) == code_digest(len)


def test_model_agents_of_different_prompts_have_different_digests() -> None:
    def asking(prompt: str) -> AgentCard:
        return LLMAgent(name="a", description="d", instructions=prompt, model="offline").card

    assert asking("Be brief.").digest == asking("Be brief.").digest != asking("Be long.").digest


def card(digest: str, minutes: float, **given: Any) -> AgentCard:
    started = NOW - timedelta(minutes=minutes)
    return AgentCard(name="a", description="d", digest=digest, started_at=started, **given)


@pytest.mark.parametrize(
    ("cards", "mixed"),
    [
        ([card("1" * 16, 60), card("1" * 16, 1)], False),
        ([card("1" * 16, 60), card("2" * 16, 1)], False),  # a rolling update
        ([card("1" * 16, 60), card("1" * 16, 1), card("2" * 16, 11)], True),
        ([card("1" * 16, 60), card("1" * 16, 1, input_schema={"type": "string"})], True),
    ],
)
def test_mixed_queue_is_named_after_a_rolling_update(cards: list[AgentCard], mixed: bool) -> None:
    assert bool(mixed_queue(cards, NOW)) is mixed
    assert sum(live_revisions(cards).values()) == len(cards)
    assert timedelta(minutes=1) < ROLLING_UPDATE


@pytest.mark.asyncio
async def test_each_attempt_records_its_revision_and_a_mixed_queue_is_warned_of_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agent_versions, "ROLLING_UPDATE", timedelta())
    broker, first, second = MemoryBroker(SETTINGS.namespace), lookup("one"), lookup("two")
    with capture_logs() as lines:
        async with factory.team(pipeline("shop"), [first, synthesizer], broker=broker, settled=True) as client:
            workflow = await client.submit("shop", "x")
            await workflow.outcome(20)
            entries = await client.entries(workflow.id)
            async with factory.running(factory.worker(broker.connect(), second, settings=FAST)):

                async def two() -> bool:
                    return len([each for each in await client.operations.agents() if each.name == "lookup"]) == 2

                await until(two)

                async def is_warned() -> bool:
                    return len([line for line in lines if line["event"] == "agent_queue_mixed"]) == 2

                await until(is_warned)

    (done,) = [entry for entry in entries if isinstance(entry, TaskSucceeded)]
    (task,) = build_trace(entries).children[0].children
    assert done.result.revision == first.card.revision
    assert (task.revision, task.children[0].revision) == (first.card.revision, first.card.revision)
    warned = [event for event in lines if event["event"] == "agent_queue_mixed"]
    assert len(warned) == 2  # each of the two workers warns
    assert all(f"{first.card.revision} (1)" in event["reason"] for event in warned)


@pytest.mark.asyncio
async def test_supervisor_warns_of_another_definition_of_its_team() -> None:
    broker = MemoryBroker(SETTINGS.namespace)
    with capture_logs() as lines:
        async with (
            factory.team(pipeline("shop"), [lookup("x")], broker=broker),
            factory.running(factory.supervisor(broker.connect(), pipeline("shop", approve_plan=True))),
        ):
            pass

    (warned,) = [event for event in lines if event["event"] == "team_definitions_differ"]
    assert sum(warned["live"].values()) == 2


@pytest.mark.asyncio
async def test_worker_without_a_key_says_so_at_its_start_and_on_its_card(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("POINTSMAN_MODEL", "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    broker = MemoryBroker(SETTINGS.namespace)
    chosen = LLMAgent(name="chosen", description="d", instructions="Be brief.", model="offline")
    default = LLMAgent(name="default", description="d", instructions="Be brief.")
    client = Client(broker.connect())
    with capture_logs() as lines:
        async with factory.running(factory.worker(broker.connect(), chosen, default, settings=FAST, own_loop=True)):

            async def announced() -> bool:
                return len(await client.operations.agents()) == 2

            await until(announced)
            problems = {card.name: card.problems for card in await client.operations.agents()}

    (warned,) = [line for line in lines if line["event"] == "model_key_missing"]
    assert warned["agents"] == ["default"]
    assert (problems["chosen"], len(problems["default"])) == ((), 1)
