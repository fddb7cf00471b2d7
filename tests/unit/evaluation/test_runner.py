"""A suite measures correct agents, correct answers and cost."""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import JsonValue, ValidationError

from pointsman.authoring.agent import agent
from pointsman.authoring.context import Context
from pointsman.authoring.llm_agent import LLMAgent
from pointsman.errors import ConfigurationError, OversizeEventError, TaskError
from pointsman.evaluation.runner import NO_AGENT, Case, CaseResult, EvaluationReport, Suite, evaluate, load_suite
from pointsman.settings import Settings
from pointsman.testing import ScriptedModel, running_team, text_reply
from pointsman_schemas.card import Role
from pointsman_schemas.envelope import decode
from pointsman_schemas.events import Handoff, Outcome, Result, Usage
from pointsman_schemas.log import WorkflowStarted
from pointsman_schemas.plan import Plan
from pointsman_schemas.role_io import PlannerInput, Synthesis, SynthesizerInput
from pointsman_schemas.team import ANY, Limits, PlanAndExecute, Team

TEAM = Team(name="shop", agents=ANY, strategy=PlanAndExecute(), limits=Limits(deadline=20))


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


async def judged(*cases: Case, **more: Any) -> EvaluationReport:
    async with running_team(TEAM, [planner, synthesizer, tea, cake]) as client:
        return await evaluate(Suite(team="shop", cases=cases, **more), client)


async def test_routing_accuracy_and_confusion_are_measured() -> None:
    report = await judged(
        Case(input="tea please", agents=("tea",)),
        Case(input="tea and cake please", agents=("tea", "cake")),
        Case(input="cake please", agents=("tea",)),
        Case(input="tea and cake", agents=("cake",)),
        Case(input="please", agents=("tea",), status="failed"),
        threshold=0.4,
    )

    assert report.routing_accuracy == report.accuracy == pytest.approx(0.4)
    assert report.passed
    assert report.confusion == {
        ("tea", "tea"): 2, ("cake", "cake"): 2, ("tea", "cake"): 1, (NO_AGENT, "tea"): 1, ("tea", NO_AGENT): 1,
    }  # fmt: skip
    assert report.results[2].problems == ("the agents used are cake, expected tea",)
    assert report.results[1].agents_used == ("cake", "tea")


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


def says_nothing(outcome: Outcome) -> None:
    raise AssertionError


HELD: list[tuple[Case, tuple[str, ...]]] = [
    (Case(input="tea", answer="tea is 4 EUROS."), ()),
    (Case(input="tea", answer="tea is 5 euros."), ("the answer is 'tea is 4 euros.', expected 'tea is 5 euros.'",)),
    (Case(input="tea", answer="x" * 300), (f"the answer is 'tea is 4 euros.', expected '{'x' * 200}'",)),
    (Case(input="tea", answer=""), ("the answer is 'tea is 4 euros.', expected ''",)),
    (Case(input="tea", answer={"price": 4}), ("the answer's price is null, expected 4",)),
    (Case(input="tea", contains=("4 euros", "TEA IS 4")), ()),
    (Case(input="tea", contains=("milk",)), ("the answer does not contain 'milk'",)),
    (Case(input="tea", check=lambda outcome: True), ()),
    (Case(input="tea", check=lambda outcome: None), ()),
    (Case(input="tea", check=lambda outcome: False), ("<lambda> rejected the result",)),
    (Case(input="tea", check=too_cheap), ("it should cost 9",)),
    (Case(input="tea", check=raises), ("raises failed: ZeroDivisionError: oh",)),
    (Case(input="tea", check=leaves), ("leaves failed: SystemExit: 3",)),
    (Case(input="tea", check=awaits), ("it should be green",)),
    (Case(input="tea", check=says_nothing), ("says_nothing rejected the result",)),
    (Case(input="tea", check=lambda outcome: outcome.workflow_id != ""), ()),
    (Case(input="tea", status="partial"), ("the status is completed, expected partial",)),
    (Case(input="tea", agents=()), ("the agents used are tea, expected (none)",)),
    (Case(input="please", agents=(), status="failed"), ()),
    (
        Case(input="please", agents=("tea",)),
        (
            "the status is failed, expected completed: nobody can",
            "the agents used are (none), expected tea",
        ),
    ),
]


async def test_answer_is_compared_with_the_expectation() -> None:
    report = await judged(*(case for case, _ in HELD))

    assert [(each.name, each.problems) for each in report.results] == [
        (f"{place}: {case.input}", problems) for place, (case, problems) in enumerate(HELD, 1)
    ]
    assert not report.passed


async def test_one_agent_is_evaluated_without_a_supervisor_with_its_cost() -> None:
    seller = LLMAgent(
        name="seller", description="Sells", instructions="Sell.", model=ScriptedModel(text_reply("4"), text_reply("5"))
    )
    cases = (Case(input="tea", answer="4"), Case(input="cake", answer="6"))
    async with running_team(TEAM, [planner, synthesizer, seller]) as client:
        report = await evaluate(Suite(agent="seller", cases=cases), client, parallel=1)

    assert (report.accuracy, report.usage.calls, report.usage.tokens) == (0.5, 2, 30)
    assert [len(each.problems) for each in report.results] == [0, 1]


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
    assert [each.problems for each in counted.results] == [(), ("the answer is '2', expected '3'",), ()]
    assert bad.results[0].problems == ("the answer's price is 5, expected 6",)


async def test_agent_failure_is_reported_or_expected() -> None:
    @agent(name="closed", description="Cannot do it")
    async def closed(text: str) -> str:
        raise TaskError("the shop is closed")

    cases = (Case(input="x"), Case(input="x", status="failed", agents=("closed",)))
    async with running_team(TEAM, [planner, synthesizer, closed]) as client:
        report = await evaluate(Suite(agent="closed", cases=cases), client)

    assert [each.problems for each in report.results] == [
        ("the status is failed, expected completed: the shop is closed",), (),
    ]  # fmt: skip
    assert (report.name, report.routing_accuracy) == ("closed", 1.0)


async def test_an_agent_is_asked_as_a_supervisor_would_ask_it() -> None:
    seen: list[Handoff] = []

    @agent(name="seer", description="Looks at what it is handed")
    async def seer(asked: Any, context: Context) -> str:
        seen.append(context.handoff)
        return "x" * 300

    given: JsonValue = {"size": "x" * 100}
    cases = (
        Case(input="a text", answer="z"),
        Case(input=given),
        Case(name="third", input="a text", answer={"a": "y" * 300}),
    )
    async with running_team(TEAM, [planner, synthesizer, seer]) as client:
        report = await evaluate(Suite(agent="seer", cases=cases, timeout=7), client, parallel=1)
        sent = await client.bus.last("work", client.subjects.handoff("seer", "eval", seen[0].workflow_id, "T1", 1))
        source = client.source

    assert sent is not None
    envelope, _ = decode(sent.headers, sent.body)
    assert envelope is not None
    assert envelope.source == source
    assert [(each.intent, each.input) for each in seen] == [
        ("a text", "a text"), ("Work on the input", given), ("a text", "a text"),
    ]  # fmt: skip
    assert report.results[0].problems == (f"the answer is '{'x' * 200}', expected 'z'",)
    assert report.results[2].problems == (f"the answer's a is null, expected \"{'y' * 199}",)
    assert [each.name for each in report.results] == ["1: a text", '2: {"size":"' + "x" * 68, "third"]
    assert [each.workflow_id for each in report.results] == [each.workflow_id for each in seen]
    assert len({each.idempotency_key for each in seen}) == 3
    assert all(0 < (each.deadline - datetime.now(UTC)).total_seconds() <= 7 for each in seen)
    assert 0 < max(each.elapsed for each in report.results) < report.elapsed < 7


async def test_unsendable_cases_end_the_evaluation_with_the_first_error() -> None:
    cases = (Case(input="tea " * 1000), Case(input="cake " * 1000))
    settings = Settings(max_body=2000, shutdown_grace=0.0)
    async with running_team(TEAM, [planner, synthesizer, tea], settings=settings) as client:
        with pytest.raises(OversizeEventError, match="the request is too large"):
            await evaluate(Suite(team="shop", cases=cases), client)


async def test_concurrent_cases_are_bounded() -> None:
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


async def test_missing_agent_is_a_wrong_case() -> None:
    async with running_team(TEAM, [planner, synthesizer, tea]) as client:
        of_agent = Suite(agent="nobody", cases=(Case(input="x"),), timeout=0.2)
        suites = of_agent, of_agent.model_copy(update={"agent": None, "team": "nobody"})
        async with asyncio.timeout(5):
            reports = await asyncio.gather(*(evaluate(suite, client) for suite in suites))

    for report in reports:
        assert report.results[0].problems == ("the case had not ended after 0.2 s",)
        assert (report.results[0].status, report.results[0].agents_used, report.usage) == ("running", (), Usage())


async def test_the_timeout_of_a_case_is_the_deadline_of_its_workflow() -> None:
    async with running_team(TEAM, [planner, synthesizer, tea, cake]) as client:
        report = await evaluate(Suite(team="shop", cases=(Case(input="tea"),), timeout=9), client)
        (begun, *_) = await client.entries(report.results[0].workflow_id)

    assert isinstance(begun, WorkflowStarted)
    assert (begun.deadline - begun.at).total_seconds() <= 9


WRONG = CaseResult(
    "a <b>\x07", ("first\x01", "second"), ("tea",), ("cake",), {"a": 1}, "failed", "wf_1", 1.25,
    Usage(calls=2, input_tokens=10, output_tokens=5, cost=0.5),
)  # fmt: skip
GOOD = CaseResult(
    "good", (), None, (), "yes", "completed", "wf_2", 0.5, Usage(calls=1, input_tokens=1, output_tokens=1)
)
REPORT = EvaluationReport("shop", 0.5, [WRONG, GOOD], 2.0, {("tea", "cake"): 2, ("cake", "cake"): 1})


def test_a_report_is_json() -> None:
    assert REPORT.as_json() == {
        "name": "shop", "passed": True, "accuracy": 0.5, "threshold": 0.5, "routing": 0.0, "elapsed": 2.0,
        "usage": {"calls": 3, "input_tokens": 11, "output_tokens": 6, "cost": 0.5},
        "confusion": [
            {"expected": "cake", "used": "cake", "count": 1}, {"expected": "tea", "used": "cake", "count": 2},
        ],
        "cases": [
            {
                "name": "a <b>\x07", "passed": False, "problems": ["first\x01", "second"], "expected": ["tea"],
                "used": ["cake"], "status": "failed", "answer": {"a": 1}, "workflow_id": "wf_1", "elapsed": 1.25,
                "usage": {"calls": 2, "input_tokens": 10, "output_tokens": 5, "cost": 0.5},
            },
            {
                "name": "good", "passed": True, "problems": [], "expected": None, "used": [], "status": "completed",
                "answer": "yes", "workflow_id": "wf_2", "elapsed": 0.5,
                "usage": {"calls": 1, "input_tokens": 1, "output_tokens": 1, "cost": 0.0},
            },
        ],
    }  # fmt: skip
    assert EvaluationReport("shop", 1.0, [GOOD], 1.0).routing_accuracy is None


def test_a_report_is_junit() -> None:
    assert REPORT.as_junit().decode() == (
        "<?xml version='1.0' encoding='utf-8'?>\n"
        '<testsuite name="shop" tests="2" failures="1" errors="0" skipped="0" time="2.000">'
        '<testcase classname="shop" name="a &lt;b&gt;" time="1.250">'
        '<failure message="first">first\nsecond\nanswer: {"a":1}</failure></testcase>'
        '<testcase classname="shop" name="good" time="0.500" /></testsuite>'
    )


def test_a_suite_is_read_from_yaml_json_and_python(tmp_path: Path) -> None:
    (tmp_path / "checks_of_suite.py").write_text("def fine(outcome):\n    return True\n")
    (tmp_path / "a.yaml").write_text("team: shop\ncases: [{input: tea, check: 'checks_of_suite:fine'}]\n")
    (tmp_path / "a.json").write_text('{"team": "shop", "cases": [{"input": {"a": 1}}]}')
    (tmp_path / "a.py").write_text(
        "from pointsman.evaluation.runner import Case, Suite\nsuite = Suite(agent='x', cases=[Case(input='y')])\n"
    )

    assert load_suite(tmp_path / "a.yaml").cases[0].input == "tea"
    assert load_suite(tmp_path / "a.json").cases[0].input == {"a": 1}
    assert load_suite(tmp_path / "a.py").agent == "x"


def test_quoted_text_and_plain_json_values_of_a_yaml_suite_are_kept(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        "team: shop\ncases:\n"
        "- input: {a: 'NO', b: \"12:30\", d: true, e: -1.5, f: 0, g: ~, h: 2e, i: v1.2}\n"
        "- &one {input: x, answer: NOT}\n- {<<: *one, name: two}\n"
    )

    first, _, third = load_suite(tmp_path / "a.yaml").cases

    assert first.input == {"a": "NO", "b": "12:30", "d": True, "e": -1.5, "f": 0, "g": None, "h": "2e", "i": "v1.2"}
    assert (third.input, third.answer, third.name) == ("x", "NOT", "two")


def test_a_suite_s_folder_is_where_checks_are_looked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.json").write_text('{"team": "shop", "cases": [{"input": "x"}]}')
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)

    for _ in range(2):
        load_suite(Path("a.json"))

    assert sys.path.count(str(tmp_path)) == 1


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.json", '{"team": "shop", ', "a.json is not valid: "),
        ("a.json", '{"team": "shop", "team": "shop", "cases": [{"input": "x"}]}', "a.json is not valid: .*team"),
        ("a.py", "", "a.py defines no Suite; add Suite"),
        (
            "a.py",
            "from pointsman.evaluation.runner import Case, Suite\n"
            "one = Suite(agent='x', cases=[Case(input='y')])\ntwo = one.model_copy()\n",
            r"a.py defines 2 suites; define one Suite\(\.\.\.\)",
        ),
        ("b.yaml", "", r"there is no file .*a.yaml; give a suite in YAML, JSON or Python"),
    ],
)
def test_a_suite_of_any_form_that_cannot_be_read_reports_the_reason(
    name: str, text: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)

    with pytest.raises(ConfigurationError, match=said):
        load_suite(tmp_path / name.replace("b.", "a."))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cases: [{input: x}]\n", "give one of them"),
        ("team: shop\ncases: [{input: x, agnts: [a]}]\n", "agnts"),
        ("team: shop\ncases: [{input: x, check: 'nowhere:fine'}]\n", "module:function"),
        ("team: shop\ncases: [{input: x, check: './checks.py:fine'}]\n", "module:function"),
        ("team: shop\ncases: [{input: x, check: 'fine'}]\n", "module:function"),
        ("team: shop\ncases: [{input: x, check: ':fine'}]\n", "module:function"),
        ("team: shop\ncases: [{input: x, check: 'json:nothing'}]\n", "has no attribute 'nothing'; expected module:fun"),
        ("team: shop\ncases: [{input: x}, {input: 3}]\n", r"the input of cases\.1 is neither a text nor an object"),
        ("team: shop\ncases: 3\n", r"valid: cases: a list is expected$"),
        ("team: shop\ncases: [3]\n", r"valid: cases\.0: an object is expected|fit: cases\.0: .*instance of Case"),
        ("!!python/object/apply:os.getcwd []\n", "not valid YAML"),
        ("team: shop\ncases: [{input: x, check: 'json:decoder'}]\n", "json:decoder.* is a module; expected a function"),
        ("team: shop\ncases: [{input: x, agent: a}]\n", r"valid: cases\.0 has no 'agent'; did you mean agents\?$"),
        (
            "team: shop\nsize: 1\ncases: [{input: x}]\n",
            "valid: it has no 'size'; it has team, agent, target, threshold,",
        ),
        ("team: shop\ncases: [{input: x, agents: a}]\n", r"valid: cases\.0\.agents: a list is expected$"),
        ("team: shop\ncases: []\n", r"valid: cases: at least one is expected$"),
        (
            "team: shop\ncases: [{input: x, status: succeeded}]\n",
            r"cases\.0\.status: .*'completed', 'partial', 'failed'",
        ),
        (
            "team: shop\ncases: [{input: x, check: 'raising_checks:fine'}]\n",
            "its module raised ZeroDivisionError: .*correct",
        ),
        ("", r"is empty; expected an object with a `team` or an `agent`, and `cases`$"),
        ("- x\n", "is a list; expected an object with a `team`"),
        ("a: [", "not valid YAML"),
        ("team: shop\nteam: shop\n", r"line 2, column 1: the mapping has the key 'team' twice; keep one"),
        ("cases: [{input: x, answer: {a: 1, b: 2, a: 3}}]\n", "line 1, .*has the key 'a' twice"),
        ("cases: [{input: x, answer: NO}]\n", "YAML reads NO as a boolean, .*; quote it: 'NO'"),
        ("cases: [{input: [on], answer: x}]\n", "YAML reads on as a boolean"),
        ("cases: [{input: x, answer: 12:30}]\n", "YAML reads 12:30 as a number in another notation; quote it: '12:30'"),
        ("cases: [{input: {zip: 01234}}]\n", "YAML reads 01234 as a number in another notation; quote it"),
        ("cases: [{input: {id: 0x1F}}]\n", "YAML reads 0x1F as a number"),
        ("cases: [{input: {n: 1_000}}]\n", "YAML reads 1_000 as a number"),
        ("cases: [{input: {n: 1e3}}]\n", "YAML reads 1e3 as text; quote it, or write a number without an exponent"),
        ("cases: [{input: {n: .inf}}]\n", "YAML reads .inf as a number"),
        ("cases: [{input: x, answer: 2026-01-31}]\n", "YAML reads 2026-01-31 as a date; quote it: '2026-01-31'"),
        ("cases: [{input: {at: 2026-01-31 10:00:00Z}}]\n", "as a date; quote it"),
        ("cases: [{input: {1: x}}]\n", "the key 1 is not text; quote it"),
        ("cases: [{input: {NO: x}}]\n", "YAML reads NO as a boolean"),
        ("cases: [{input: !!binary aGk=}]\n", "of type bytes, which JSON cannot represent"),
        ("cases: &a [{input: *a}]\n", "nested deeper than"),
    ],
)
def test_a_suite_that_does_not_fit_says_where(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(text)
    (tmp_path / "raising_checks.py").write_text("1 / 0\n")

    with pytest.raises(ConfigurationError, match=said):
        load_suite(path)


@pytest.mark.parametrize(
    "given",
    [{"team": "a", "agent": "b"}, {}, {"team": "a", "threshold": 1.1}, {"team": "a", "threshold": -0.1},
     {"team": "a", "timeout": 0}],
)  # fmt: skip
def test_a_suite_is_for_one_of_them_within_bounds(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Suite(**given, cases=(Case(input="x"),))
    assert Suite(team="a", cases=(Case(input="x"),)).threshold == 1.0
    assert Suite(agent="a", cases=(Case(input=3),)).cases[0].input == 3
