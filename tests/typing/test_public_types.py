"""The types of the public API. Both type checkers and pytest read this file."""

from __future__ import annotations

from typing import assert_type

from pydantic import BaseModel

import pointsman
from pointsman import Client, Context, Limits, PlanAndExecute, Team, agent, tool
from pointsman.authoring.agent import Agent, FunctionAgent
from pointsman.authoring.tools import Tool
from pointsman.client.client import Workflow
from pointsman.testing import RecordingReporter, text_reply, tool_reply
from pointsman_schemas.events import Outcome


class Passage(BaseModel):
    text: str


@agent(name="translator", description="Translates a passage")
async def translate(passage: Passage, context: Context) -> Passage:
    return passage


@agent
def shorten(text: str) -> str:
    """Shorten a text."""
    return text[:10]


@agent
async def lengthen(text: str, context: Context) -> str:
    """Lengthen a text."""
    return 2 * text


@tool
def word_count(text: str) -> int:
    """Count the words of a text."""
    return len(text.split())


@tool(idempotent=True)
async def translated_count(text: str, context: Context) -> int:
    """Count the words of a text in another language."""
    counted = await context.call(word_count, text=text)
    assert isinstance(counted, int)
    return counted


async def tell(context: Context, counts: dict[str, list[int]]) -> None:
    """JSON values keep their declared types, and pydantic models stay models."""
    context.progress("counted", counts=counts)
    await context.emit("counted", counts)


async def ask(client: Client) -> str:
    workflow = await client.submit("helpdesk", "hello")
    assert_type(workflow, Workflow)
    outcome = await workflow.outcome(timeout=1.0)
    assert_type(outcome, Outcome)
    return outcome.status


def test_a_decorated_function_is_an_agent_and_still_the_function_it_was() -> None:
    registered: Agent = translate
    bare: FunctionAgent[[str], str] = shorten
    called: Tool[[str], int] = word_count

    assert registered.card.name == "translator"
    assert bare.card.name == "shorten"
    assert_type(bare("a"), str)
    assert lengthen.card.description == "Lengthen a text."
    assert called.spec.name == "word_count"
    assert callable(translate)


async def test_code_calls_a_tool_by_its_model_arguments_without_the_context() -> None:
    assert await Context.for_test().call(translated_count, text="one two") == 2


async def test_testing_helpers_keep_their_declared_types() -> None:
    counts, passage = {"words": [1, 2]}, Passage(text="one two")
    reporter = RecordingReporter()
    context = Context.for_test(passage, reporter=reporter)
    await tell(context, counts)

    assert context.handoff.input == {"text": "one two"}
    assert [event.data for event in (*reporter.reports, *reporter.events)] == [{"counts": counts}, counts]
    assert (text_reply(counts).data, text_reply(passage).data) == (counts, {"text": "one two"})
    assert [call.arguments for call in tool_reply(("count", passage), ("count", counts)).calls] == [
        '{"text":"one two"}', '{"words":[1,2]}',
    ]  # fmt: skip


def test_a_team_is_made_of_values() -> None:
    team = Team(name="helpdesk", strategy=PlanAndExecute(), limits=Limits(deadline=60))

    assert_type(team.limits.deadline, float)
    assert team.agents == pointsman.ANY
