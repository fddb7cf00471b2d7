"""A real model classifies, plans and answers within bounds, over a real compatible server.

The model is so small that its answers are often wrong. Nevertheless, the closed schemas of the roles make each
selection and each plan valid, and every answer ends. Run the tests with `make real-model`.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from jsonschema import Draft202012Validator
from pydantic import JsonValue
from support.tiny_model import MODEL_NAME, tiny_model_server

from pointsman import Agent, Context, Interceptor, LLMAgent, ModelInvocation, ModelReply, Next, agent
from pointsman.core.planning.validation import check_plan, read_plan, read_selection
from pointsman.errors import TaskError
from pointsman.llm.openai import OpenAIModel
from pointsman.testing import run_team
from pointsman.util.environment import variable
from pointsman_agents.classifier import classifier
from pointsman_agents.planner import planner
from pointsman_agents.synthesizer import synthesizer
from pointsman_schemas import role_schemas
from pointsman_schemas.plan import Plan, Selection
from pointsman_schemas.role_io import AvailableAgent, ClassifierInput, PlannerInput
from pointsman_schemas.role_schemas import plan_schema, selection_schema
from pointsman_schemas.strict_json import parse_json
from pointsman_schemas.team import Limits, PlanAndExecute, Router, Team

pytestmark = [
    pytest.mark.skipif(not variable("POINTSMAN_REAL_MODEL"), reason="run by `make real-model`"),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(900),  # on a busy machine the model writes three tokens a second
]


@pytest.fixture(autouse=True)
def short_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the length limits of texts, because the model always writes up to the limit. Only the form is tested."""
    for name, most in (("_SENTENCE_CHARS", 40), ("_PARAGRAPH_CHARS", 60), ("_ANSWER_CHARS", 200)):
        assert getattr(role_schemas, name) > most
        monkeypatch.setattr(role_schemas, name, most)


REQUESTS = ("I was charged twice for order 18", "The app crashes when I open it", "翻訳してください")
MENU = (
    AvailableAgent(name="billing", description="Refunds and invoices", skills=("refunds",)),
    AvailableAgent(name="technical", description="Crashes and errors of the app", skills=("debugging", "logs")),
    AvailableAgent(name="front-desk", description="All other questions"),
)
BEYOND_A_SCHEMA = ("is used", "depends on", "are the same", "wait for each other", "links", "no tasks", "of this kind")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def model() -> AsyncIterator[OpenAIModel]:
    async with tiny_model_server() as base_url:
        made = OpenAIModel(MODEL_NAME, base_url=base_url, api_key="x", timeout=800)
        yield made
        await made.close()


class Replies(Interceptor):
    """Records the raw answers of a model."""

    def __init__(self) -> None:
        self.written: list[JsonValue] = []

    async def model(self, call: ModelInvocation, next: Next[ModelInvocation, ModelReply]) -> ModelReply:
        reply = await next(call)
        self.written.append(reply.data if reply.data is not None else parse_json(reply.text.encode()))
        return reply


async def ask(role: LLMAgent, given: Any) -> tuple[Any, Any, Context]:
    """Return the raw answer of the model, the output of the role, and the context."""
    replies = Replies()
    context = Context.for_test(given.model_dump(mode="json"), intent="Do your work.", interceptors=[replies])
    output = await role.run(context.handoff, context)
    assert len(replies.written) == 1  # the role did not ask the model again
    return replies.written[0], output, context


@pytest.mark.parametrize("request_text", REQUESTS)
async def test_each_selection_is_valid(model: OpenAIModel, request_text: str) -> None:
    given = ClassifierInput(request=request_text, agents=MENU)
    began = time.monotonic()

    written, output, context = await ask(classifier.with_model(model), given)

    Draft202012Validator(selection_schema(given)).validate(written)
    selection = read_selection(output)
    assert isinstance(selection, Selection)
    names = {each.name for each in MENU}
    assert all(each.agent in names or each.skill for each in selection.agents)
    assert 0 < context.usage.output_tokens <= 2_000
    assert time.monotonic() - began < 800


@pytest.mark.parametrize("request_text", REQUESTS)
async def test_each_plan_is_valid(model: OpenAIModel, request_text: str) -> None:
    given = PlannerInput(request=request_text, agents=MENU, max_tasks=2)

    written, output, context = await ask(planner.with_model(model), given)

    Draft202012Validator(plan_schema(given)).validate(written)
    plan = read_plan(output)
    assert isinstance(plan, Plan)
    skills = {skill for each in MENU for skill in each.skills}
    problems = check_plan(plan, [each.name for each in MENU], Limits(tasks=2), skills=skills)
    assert [each for each in problems if not any(words in each for words in BEYOND_A_SCHEMA)] == []
    assert 0 < context.usage.output_tokens <= 6_000


@agent(name="billing", description="Refunds and invoices")
async def billing(request: str) -> str:
    return "The second charge is refunded."


@agent(name="technical", description="Crashes and errors of the app")
async def technical(request: str) -> str:
    return "Install version 2.1."


def cast(model: OpenAIModel) -> list[Agent]:
    answering = LLMAgent(
        name="front-desk",
        description="All other questions",
        instructions="Answer in one sentence.",
        model=model,
        max_tokens=60,
    )
    return [*(role.with_model(model) for role in (classifier, planner, synthesizer)), billing, technical, answering]


@pytest.mark.parametrize("strategy", [Router(synthesizer="synthesizer"), PlanAndExecute()], ids=["router", "planner"])
async def test_a_team_ends_each_request_within_its_limits(model: OpenAIModel, strategy: Any) -> None:
    limits = Limits(deadline=840, task_timeout=800, tasks=2, plan_repairs=1, calls=12)
    team = Team(name="helpdesk", agents=("billing", "technical", "front-desk"), strategy=strategy, limits=limits)

    outcome = await run_team(team, cast(model), REQUESTS[0], timeout=880)

    assert outcome.status in ("completed", "partial", "failed")
    assert outcome.usage.calls <= 12
    assert outcome.usage.tokens > 0
    assert "undecodable" not in outcome.reason
    assert "does not fit" not in outcome.reason


async def test_a_long_answer_ends_at_its_limit(model: OpenAIModel) -> None:
    writer = LLMAgent(
        name="writer", description="Write", instructions="Write a very long story.", model=model, max_tokens=20
    )
    context = Context.for_test("Tell me everything about Oslo, in a thousand words.")

    with pytest.raises(TaskError) as cut:
        await writer.run(context.handoff, context)

    assert cut.value.kind == "limit"
    assert context.usage.output_tokens <= 20
