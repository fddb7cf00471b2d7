"""Only operators get the text of a tool's exception. A model, and so the caller, gets only the exception's type."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs
from support.contexts import new_context, recorded
from support.journals import MemoryJournal

from pointsman.authoring.context import Context
from pointsman.authoring.llm_agent import LLMAgent
from pointsman.authoring.tools import Tool, tool
from pointsman.errors import RefusedError, TaskError
from pointsman.testing.models import ScriptedModel, text_reply, tool_reply
from pointsman.util.scrubber import HIDDEN_TEXT
from pointsman_schemas.events import Answer, Step

SECRET = "password=hunter2 broke"


@tool
async def connect() -> str:
    """Connect to the database."""
    raise ConnectionError(SECRET)


@tool
def block() -> str:
    """Connect to the database, in a thread."""
    raise OSError(SECRET)


@tool
async def refuse() -> str:
    """Refuse."""
    raise RefusedError("the database is closed until Monday")


@tool
async def fail() -> str:
    """Fail with a text for the model."""
    try:
        raise ConnectionError(SECRET)
    except ConnectionError as error:
        raise TaskError("the database is away; try without it") from error


def clerk(*script: Any) -> LLMAgent:
    tools: list[Tool[..., Any]] = [connect, block, refuse, fail]
    return LLMAgent(name="clerk", description="d", instructions="i", tools=tools, model=ScriptedModel(*script))


async def test_a_model_gets_the_type_and_operators_get_the_text() -> None:
    journal, calls = MemoryJournal(), tool_reply(("connect", {}), ("block", {}))
    agent, context = clerk(calls, text_reply("It failed.")), new_context(journal=journal)

    with capture_logs() as lines:
        await agent.run(context.handoff, context)

    assert isinstance(agent.model, ScriptedModel)
    turns = [turn.text for request in agent.model.requests for turn in request.turns]
    assert [text for text in turns if text.startswith(("connect", "block"))] == [
        "connect failed: ConnectionError; `pointsman trace` has the reason",
        "block failed: OSError; `pointsman trace` has the reason",
    ]
    assert SECRET not in "".join(turns) + "".join(step.text for step in journal.steps.values())
    failed = {line["tool"]: line for line in lines if line["event"] == "tool_failed"}
    assert {name: str(line["exc_info"]) for name, line in failed.items()} == {"connect": SECRET, "block": SECRET}
    assert {line["agent"] for line in failed.values()} == {"agent"}
    reports = [report.error for report in recorded(context).reports if report.kind == "tool"]
    assert sorted(map(str, reports)) == [f"ConnectionError: {HIDDEN_TEXT} broke", f"OSError: {HIDDEN_TEXT} broke"]


async def test_a_text_that_a_tool_means_for_the_model_reaches_the_model() -> None:
    calls = tool_reply(("refuse", {}), ("fail", {}))
    agent, context = clerk(calls, text_reply("It failed.")), new_context()

    with capture_logs() as lines:
        await agent.run(context.handoff, context)

    assert isinstance(agent.model, ScriptedModel)
    texts = [turn.text for turn in agent.model.requests[1].turns if turn.role == "tool"]
    assert texts == [
        "refuse failed: the database is closed until Monday",
        "fail failed: the database is away; try without it",
    ]
    assert SECRET not in "".join(texts)
    assert [line for line in lines if line["event"] == "tool_failed"] == []


async def test_code_that_calls_a_tool_gets_the_exception_itself() -> None:
    with pytest.raises(ConnectionError, match=SECRET):
        await Context.for_test().call(connect)


async def test_a_recorded_failure_of_an_approved_call_has_the_type_alone() -> None:
    @tool(approval=True)
    async def pay() -> str:
        """Pay."""
        raise ConnectionError(SECRET)

    journal, verdicts = MemoryJournal(), (Answer(tool="pay", verdict="approved"),)
    first, again = (new_context(update={"answers": verdicts}, journal=journal) for _ in range(2))

    with pytest.raises(ConnectionError):
        await first.call(pay)
    with pytest.raises(TaskError, match="pay has run, and is not run again: ConnectionError; `pointsman trace`"):
        await again.call(pay)

    (step,) = journal.steps.values()
    assert isinstance(step, Step)
    assert SECRET not in step.model_dump_json()
