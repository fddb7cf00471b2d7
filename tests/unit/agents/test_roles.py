"""The shipped roles: their cards, their prompts and the checks of their answers."""

from __future__ import annotations

import re
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, JsonValue

import pointsman_agents
from pointsman.authoring.context import Context
from pointsman.authoring.llm_agent import LLMAgent
from pointsman.core.planning.validation import check_plan, read_plan
from pointsman.errors import TaskError
from pointsman.testing.models import ScriptedModel, text_reply
from pointsman_agents.classifier import classifier
from pointsman_agents.judge import judge
from pointsman_agents.planner import planner
from pointsman_agents.refiner import refiner
from pointsman_agents.reviewer import reviewer
from pointsman_agents.synthesizer import synthesizer
from pointsman_schemas.card import Role
from pointsman_schemas.events import Gap, TaskReport
from pointsman_schemas.plan import Plan, Selection
from pointsman_schemas.role_io import (
    ClassifierInput,
    ConflictRuling,
    JudgeInput,
    PlannerInput,
    Refinement,
    RefinerInput,
    RemainingLimits,
    Review,
    ReviewInput,
    Synthesis,
    SynthesizerInput,
)
from pointsman_schemas.role_schemas import closed_schema
from pointsman_schemas.strict_json import parse_json
from pointsman_schemas.team import Limits

PROMPTS = Path(pointsman_agents.__path__[0])
GOOD: JsonValue = {"tasks": [{"id": "t1", "agent": "a", "intent": "Look at it"}]}


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make no role take the model of a key in the environment."""
    monkeypatch.setenv("POINTSMAN_MODEL", "offline")


async def run(agent: LLMAgent, data: BaseModel, model: ScriptedModel) -> JsonValue:
    context = Context.for_test(data.model_dump(mode="json"), agent=agent.card.name, intent="as always")
    return await agent.with_model(model).run(context.handoff, context)


@pytest.mark.parametrize(
    ("agent", "name", "role", "takes", "gives", "longest"),
    [
        (planner, "planner", Role.PLAN, PlannerInput, Plan, 6_000),
        (classifier, "classifier", Role.CLASSIFY, ClassifierInput, Selection, 2_000),
        (synthesizer, "synthesizer", Role.SYNTHESIZE, SynthesizerInput, Synthesis, 6_000),
        (refiner, "refiner", Role.REFINE, RefinerInput, Refinement, 1_000),
        (judge, "judge", Role.JUDGE, JudgeInput, ConflictRuling, 2_000),
        (reviewer, "reviewer", Role.JUDGE, ReviewInput, Review, 1_000),
    ],
)
async def test_role_is_found_by_name_with_its_own_prompt_and_contract(
    agent: LLMAgent, name: str, role: Role, takes: type[BaseModel], gives: type[BaseModel], longest: int
) -> None:
    (found,) = entry_points(group="pointsman.agents", name=name)
    model = ScriptedModel(text_reply("no JSON"), text_reply("no JSON either"), text_reply("never"))

    with pytest.raises(TaskError, match="nor its repair can be used"):
        await run(agent, _some(takes), model)

    assert found.load() is agent
    assert (agent.card.name, agent.card.role) == (name, role)
    assert agent.card.input_schema == takes.model_json_schema()
    first, repair = model.requests
    assert first.output_schema == closed_schema(gives, _some(takes))
    assert (first.max_tokens, repair.max_tokens) == (longest, longest)
    assert first.instructions.startswith((PROMPTS / f"{name}.md").read_text().strip())
    assert "it contains no JSON object" in repair.turns[-1].text


def _some(takes: type[BaseModel]) -> BaseModel:
    """Return an input of type `kind` with its required fields."""
    given = {"request": "x", "task_id": "t1", "agent": "a", "intent": "x", "attempts": 2, "error": "x"}
    given["conflicts"] = ["due: a says Monday; b says Friday"]
    return takes.model_validate({field: value for field, value in given.items() if field in takes.model_fields})


async def test_planner_prompt_has_the_limits_left_and_valid_example_plans() -> None:
    left, model = (
        RemainingLimits(seconds=41.5, replans=1, calls=7, cost=0.25),
        ScriptedModel(text_reply('{"cannot": "nobody"}')),
    )

    await run(planner, PlannerInput(request="help", remaining_limits=left), model)

    (asked,) = model.requests
    assert '"remaining_limits": {"seconds": 41.5, "replans": 1, "calls": 7' in asked.turns[0].text
    assert "`remaining_limits` is what all the work may still" in " ".join(asked.instructions.split())
    examples = [
        read_plan(parse_json(text.encode())) for text in re.findall(r"```json\n(.*?)```", asked.instructions, re.DOTALL)
    ]
    assert len(examples) == 2
    for example in examples:
        assert isinstance(example, Plan)
        assert check_plan(example, {task.agent for task in example.tasks}, Limits(), {}) == ()


async def test_a_fenced_plan_is_taken_and_each_role_has_its_own_prompt() -> None:
    model = ScriptedModel(text_reply('```json\n{"tasks": [{"id": " t1 ", "agent": " a ", "intent": "Look"}]}\n```'))
    other = ScriptedModel(text_reply({"answer": "Done."}))

    plan = await run(planner, PlannerInput(request="x"), model)
    answer = await run(synthesizer, SynthesizerInput(request="x"), other)

    assert isinstance(plan, dict)
    assert plan["tasks"] == [
        {
            "id": "t1",
            "agent": "a",
            "skill": "",
            "intent": "Look",
            "input": None,
            "depends_on": [],
            "optional_dependencies": [],
            "approval": None,
            "retry": None,
        }
    ]
    assert answer == {"answer": "Done."}
    assert model.requests[0].output_name == "plan"
    assert other.requests[0].output_name == "synthesis"
    assert model.requests[0].instructions != other.requests[0].instructions


@pytest.mark.parametrize(
    "wrong",
    [
        '{"tasks": [{"id": "t1", "intent": "no agent"}]}',
        '{"tasks": [{"id": "t1", "agent": 7, "intent": "a number"}]}',
        '{"tasks": null}',
        '{"tasks": [{"id": "t1", "agent": "a", "intent": "x"},]}',
        "{'tasks': []}",
        "I would ask the first agent.",
        '[{"id": "t1"}]',
        '{"id": "t1", "agent": "a"}',
        """{'goal': "}", 'tasks': [{"id": "t1", "goal": "x"}]}""",
    ],
)
async def test_a_broken_plan_is_repaired_in_one_call_or_fails_for_good(wrong: str) -> None:
    repaired, hopeless = (ScriptedModel(text_reply(wrong), text_reply(then)) for then in (GOOD, wrong))

    plan = await run(planner, PlannerInput(request="x"), repaired)
    with pytest.raises(TaskError) as caught:
        await run(planner, PlannerInput(request="x"), hopeless)

    assert isinstance(plan, dict)
    assert len(repaired.requests) == len(hopeless.requests) == 2
    assert (caught.value.kind, caught.value.retryable) == ("invalid_output", False)


async def test_synthesizer_prompt_has_the_gaps_and_the_limit() -> None:
    gap = Gap(task_id="t2", agent="b", reason="no worker took it")
    model = ScriptedModel(text_reply({"answer": "Half."}))

    await run(synthesizer, SynthesizerInput(request="x", gaps=(gap,), limit="the deadline"), model)

    (turn,) = model.requests[0].turns
    assert "no worker took it" in turn.text
    assert "the deadline" in turn.text
    assert "Leave out none" in model.requests[0].instructions


async def test_offline_refiner_gets_the_error_and_offline_judge_decides_by_majority() -> None:
    judge_input = {"request": "when?", "conflicts": ["due: a says Friday; b says Monday; c says Monday"]}
    refiner_input = {"request": "when?", "intent": "say when", "agent": "a", "attempts": 2, "error": "timeout: slow"}

    ruled = await _answer(judge, judge_input)
    refined = await _answer(refiner, refiner_input)

    assert ruled["decisions"][0]["decision"] == "due: Monday"
    assert ruled["decisions"][0]["reason"] == "2 of 3 say so"
    assert refined["intent"] == "say when (It failed 2 times, last with: timeout: slow. Avoid that.)"


async def test_offline_reviewer_finds_invented_figures_and_states_its_limits() -> None:
    asked = {"request": "refund ch-7", "task_id": "write", "agent": "write", "intent": "write to the customer"}
    criteria = "Every date and amount in it stands in a result."

    passed = await _review(asked, "Paid back on 1 May.")
    grounded = await _review({**asked, "criteria": criteria}, "We pay back ch-7, $49.00, on 2026-01-05.")
    invented = await _review({**asked, "criteria": criteria}, "We pay back $94.00 by 2026-01-05.")
    empty = await _review({**asked, "is_last_attempt": True}, " ")

    assert passed == grounded
    assert passed["verdict"] == "pass"
    assert "can judge no more" in passed["reason"]
    assert invented["verdict"] == "again"
    assert invented["reason"].startswith("94.00 stands in no result")
    assert (empty["verdict"], empty["reason"]) == ("stop", "there is nothing in it to read")


async def _review(asked: dict[str, Any], made: str) -> Any:
    found = TaskReport(
        task_id="find",
        agent="find",
        intent="find",
        status="succeeded",
        output={"amount": 49, "text": "$49.00 2026-01-05"},
    )
    own = TaskReport(task_id="write", agent="write", intent="write", status="in_review", output=made)
    context = Context.for_test(asked, agent="reviewer", results=(found, own))
    return await reviewer.run(context.handoff, context)


async def _answer(role: Any, given: Any) -> Any:
    context = Context.for_test(given, agent=role.card.name)
    return await role.run(context.handoff, context)
