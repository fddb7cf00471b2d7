"""LLM agents with scripted models."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel, JsonValue

from pointsman.authoring.context import Context
from pointsman.authoring.llm_agent import LLMAgent
from pointsman.authoring.tools import Tool, tool
from pointsman.errors import ModelError, TaskError
from pointsman.ports.model import ModelRequest
from pointsman.testing.clock import VirtualClock
from pointsman.testing.models import Script, ScriptedModel
from pointsman_schemas.events import Budget, TaskReport
from support.contexts import new_context


class Place(BaseModel):
    city: str
    people: int = 0


class InstantClock(VirtualClock):
    """Records the duration of each sleep and returns immediately."""

    def __init__(self) -> None:
        super().__init__(datetime.now(UTC))
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


@tool
async def double(number: int) -> int:
    """Double a number."""
    return 2 * number


async def run(
    *script: Script,
    tools: Sequence[Tool[..., Any]] = (),
    output: type[BaseModel] | None = None,
    input: JsonValue = None,
    results: Sequence[TaskReport] = (),
    feedback: str = "",
    budget: Budget | None = None,
    clock: InstantClock | None = None,
    input_type: type[BaseModel] | None = None,
    **more: Any,
) -> tuple[JsonValue | BaseException, ScriptedModel, Context]:
    """Run an agent with this script. Return its output or error, its model and its context."""
    model = ScriptedModel(*script)
    agent = LLMAgent(
        name="agent",
        description="A test's agent",
        instructions="Do it.",
        model=model,
        tools=tools,
        input=input_type,
        output=output,
        clock=clock or InstantClock(),
        **more,
    )
    given = Context.for_test(input, intent="Do the thing", results=results).handoff
    context = new_context(given, update={"budget": budget, "feedback": feedback})
    try:
        return await agent.run(context.handoff, context), model, context
    except (TaskError, ModelError) as error:
        return error, model, context


def results_of(request: ModelRequest) -> list[tuple[str, bool]]:
    return [(turn.text, turn.is_error) for turn in request.turns if turn.role == "tool"]
