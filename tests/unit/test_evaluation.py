"""A suite says how many requests went to the right agents and got the right answers, and what it cost."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from pydantic import ValidationError

from pointsman.agent import agent
from pointsman.context import Context
from pointsman.errors import ConfigurationError
from pointsman.evaluation import NOBODY, Case, Report, Suite, evaluate, load_suite
from pointsman.llm_agent import LLMAgent
from pointsman.testing import ScriptedModel, running_team, saying
from pointsman_schemas.card import Role
from pointsman_schemas.events import Outcome, Result
from pointsman_schemas.log import WorkflowStarted
from pointsman_schemas.plan import Plan
from pointsman_schemas.roles import PlannerInput, Synthesis, SynthesizerInput
from pointsman_schemas.team import ANY, Limits, Supervisor, Team

TEAM = Team(name="shop", agents=ANY, strategy=Supervisor(), limits=Limits(deadline=20))


@agent(name="planner", description="Hands the request to the agents it names", role=Role.PLAN)
async def planner(asked: PlannerInput) -> Plan:
    words = str(asked.request).split()
    tasks = [{"id": name, "agent": name, "intent": str(asked.request)} for name in ("tea", "cake") if name in words]
    return Plan.model_validate({"goal": "the test's", "tasks": tasks, "cannot": "" if tasks else "nobody can"})


@agent(name="synthesizer", description="Joins", role=Role.SYNTHESIZE)
async def synthesizer(asked: SynthesizerInput, context: Context) -> Synthesis:
    return Synthesis(answer=" ".join(str(each.output) for each in context.results.values()))


@agent(name="tea", description="Sells tea")
async def tea(text: str) -> str:
    return "Tea is  4 euros."


@agent(name="cake", description="Sells cake")
async def cake(text: str) -> dict[str, Any]:
    return {"price": 5, "left": 2}


@agent(name="counter", description="Counts words")
async def counter(text: str) -> int:
    return len(text.split())


async def judged(*cases: Case, **more: Any) -> Report:
    async with running_team(TEAM, [planner, synthesizer, tea, cake]) as client:
        return await evaluate(Suite(team="shop", cases=cases, **more), client)


async def test_routing_is_measured_and_confusion_says_who_was_used_instead() -> None:
    report = await judged(
        Case(input="tea please", agents=("tea",)),
        Case(input="tea and cake please", agents=("cake", "tea")),
        Case(input="cake please", agents=("tea",)),
        Case(input="tea and cake", agents=("cake",)),
        Case(input="please", agents=("tea",), status="failed"),
        threshold=0.4,
    )

    assert report.routing == report.accuracy == pytest.approx(0.4)
    assert report.passed
    assert report.confusion == {
        ("tea", "tea"): 2, ("cake", "cake"): 2, ("tea", "cake"): 1, (NOBODY, "tea"): 1, ("tea", NOBODY): 1,
    }  # fmt: skip
    assert report.scored[2].problems == ("cake worked on it, expected tea",)


def too_cheap(outcome: Outcome) -> str | None:
    return "it should cost 9" if "9" not in str(outcome.answer) else None


def raises(outcome: Outcome) -> None:
    raise ZeroDivisionError("oh")


def leaves(outcome: Outcome) -> None:
    raise SystemExit(3)


async def awaits(outcome: Outcome) -> None:
    await asyncio.sleep(0)
    if "green" not in str(outcome.answer):
        raise AssertionError("it should be green")


@pytest.mark.parametrize(
    ("case", "problem"),
    [
        (Case(input="tea", answer="tea is 4 EUROS."), None),
        (Case(input="tea", answer="tea is 5 euros."), "the answer is 'tea is 4 euros.', expected 'tea is 5 euros.'"),
        (Case(input="tea", contains=("4 euros",)), None),
        (Case(input="tea", contains=("milk",)), "the answer does not contain 'milk'"),
        (Case(input="tea", check=lambda outcome: True), None),
        (Case(input="tea", check=too_cheap), "it should cost 9"),
        (Case(input="tea", check=raises), "raises failed: ZeroDivisionError: oh"),
        (Case(input="tea", check=leaves), "leaves failed: SystemExit: 3"),
        (Case(input="tea", check=awaits), "it should be green"),
        (Case(input="tea", check=lambda outcome: outcome.workflow_id != ""), None),
        (Case(input="tea", status="partial"), "it ended completed, expected partial"),
    ],
)
async def test_an_answer_is_held_against_what_is_expected(case: Case, problem: str | None) -> None:
    report = await judged(case)

    assert report.scored[0].problems == ((problem,) if problem else ())
    assert report.passed is (problem is None)


async def test_one_agent_is_evaluated_without_a_supervisor_with_its_cost() -> None:
    seller = LLMAgent(
        name="seller", description="Sells", instructions="Sell.", model=ScriptedModel(saying("4"), saying("5"))
    )
    cases = (Case(input="tea", answer="4"), Case(input="cake", answer="6"))
    async with running_team(TEAM, [planner, synthesizer, seller]) as client:
        report = await evaluate(Suite(agent="seller", cases=cases), client, parallel=1)

    assert (report.accuracy, report.usage.calls, report.usage.tokens) == (0.5, 2, 30)
    assert [len(each.problems) for each in report.scored] == [0, 1]


async def test_an_agent_s_fields_are_compared_and_its_result_can_be_checked() -> None:
    def enough(result: Result) -> bool:
        return isinstance(result.output, dict) and result.output["left"] == 2

    async with running_team(TEAM, [planner, synthesizer, cake]) as client:
        good = await evaluate(Suite(agent="cake", cases=(Case(input="x", answer={"price": 5}, check=enough),)), client)
        bad = await evaluate(Suite(agent="cake", cases=(Case(input="x", answer={"price": 6}),)), client)

    async with running_team(TEAM, [planner, synthesizer, counter]) as client:
        cases = (Case(input="a b", answer=2), Case(input="a b", answer=3), Case(input="a b", answer="2"))
        counted = await evaluate(Suite(agent="counter", cases=cases), client)

    assert good.passed
    assert [each.problems for each in counted.scored] == [(), ("the answer is '2', expected '3'",), ()]
    assert bad.scored[0].problems == ("the answer's price is 5, expected 6",)


async def test_as_many_cases_as_may_be_are_under_way_together_and_no_more() -> None:
    met, running, most = asyncio.Barrier(2), 0, 0

    @agent(name="pair", description="Answers when another one is asked, too")
    async def pair(text: str) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await met.wait()
        running -= 1
        return "both"

    cases = tuple(Case(input=f"case {number}", answer="both") for number in range(6))
    async with running_team(TEAM, [planner, synthesizer, pair]) as client:
        report = await evaluate(Suite(agent="pair", cases=cases, timeout=5), client, parallel=2)

    assert (report.accuracy, most) == (1.0, 2)


async def test_nobody_there_is_a_wrong_case_and_not_a_hanging_one() -> None:
    async with running_team(TEAM, [planner, synthesizer, tea]) as client:
        report = await evaluate(Suite(agent="nobody", cases=(Case(input="x"),), timeout=0.2), client)

    assert report.scored[0].problems == ("it had not ended after 0.2 s",)


async def test_a_case_is_worked_on_no_longer_than_it_is_waited_for() -> None:
    async with running_team(TEAM, [planner, synthesizer, tea, cake]) as client:
        report = await evaluate(Suite(team="shop", cases=(Case(input="tea"),), timeout=9), client)
        (begun, *_) = await client.entries(report.scored[0].workflow_id)

    assert isinstance(begun, WorkflowStarted)
    assert (begun.deadline - begun.at).total_seconds() <= 9


async def test_a_report_is_json_and_junit() -> None:
    report = await judged(Case(name="a <b>\x07", input="tea", answer="no"), Case(name="good", input="cake"))

    xml = ElementTree.fromstring(report.as_junit())
    assert (xml.get("tests"), xml.get("failures")) == ("2", "1")
    assert [case.get("name") for case in xml.iter("testcase")] == ["a <b>", "good"]
    assert all(float(part.get("time", 0)) > 0 for part in (xml, *xml.iter("testcase")))
    assert "expected 'no'" in (xml.findall("testcase/failure")[0].text or "")
    data = report.as_json()
    assert (data["accuracy"], data["passed"]) == (0.5, False)


def test_a_suite_is_read_from_yaml_json_and_python(tmp_path: Path) -> None:
    (tmp_path / "checks_of_suite.py").write_text("def fine(outcome):\n    return True\n")
    (tmp_path / "a.yaml").write_text("team: shop\ncases: [{input: tea, check: 'checks_of_suite:fine'}]\n")
    (tmp_path / "a.json").write_text('{"team": "shop", "cases": [{"input": {"a": 1}}]}')
    (tmp_path / "a.py").write_text(
        "from pointsman.evaluation import Case, Suite\nsuite = Suite(agent='x', cases=[Case(input='y')])\n"
    )

    assert load_suite(tmp_path / "a.yaml").cases[0].input == "tea"
    assert load_suite(tmp_path / "a.json").cases[0].input == {"a": 1}
    assert load_suite(tmp_path / "a.py").agent == "x"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cases: [{input: x}]\n", "give one of them"),
        ("team: shop\ncases: [{input: x, agnts: [a]}]\n", "agnts"),
        ("team: shop\ncases: [{input: x, check: 'nowhere:fine'}]\n", "module:function"),
        ("team: shop\ncases: [{input: x, check: './checks.py:fine'}]\n", "module:function"),
        ("team: shop\ncases: [{input: x, check: 'fine'}]\n", "module:function"),
        ("team: shop\ncases: [{input: x, check: ':fine'}]\n", "module:function"),
        ("team: shop\ncases: [{input: x, check: 'json:decoder'}]\n", "json:decoder.* is a module; expected a function"),
        ("team: shop\ncases: [{input: x, agent: a}]\n", r"fit: cases\.0 has no 'agent'; did you mean agents\?$"),
        ("team: shop\nsize: 1\ncases: [{input: x}]\n", "fit: it has no 'size'; it has team, agent, target, threshold,"),
        ("team: shop\ncases: [{input: x, agents: a}]\n", r"fit: cases\.0\.agents: a list is expected$"),
        ("team: shop\ncases: []\n", r"fit: cases: at least one is expected$"),
        (
            "team: shop\ncases: [{input: x, status: succeeded}]\n",
            r"cases\.0\.status: .*'completed', 'partial', 'failed'",
        ),
        (
            "team: shop\ncases: [{input: x, check: 'raising_checks:fine'}]\n",
            "its module raised ZeroDivisionError: .*mend",
        ),
        ("", r"is empty; expected an object with a `team` or an `agent`, and `cases`$"),
        ("- x\n", "is a list; expected an object with a `team`"),
        ("a: [", "no YAML"),
    ],
)
def test_a_suite_that_does_not_fit_says_where(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(text)
    (tmp_path / "raising_checks.py").write_text("1 / 0\n")

    with pytest.raises(ConfigurationError, match=said):
        load_suite(path)


def test_a_suite_is_for_one_of_them() -> None:
    with pytest.raises(ValidationError):
        Suite(team="a", agent="b", cases=(Case(input="x"),))
