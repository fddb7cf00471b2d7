"""A provider's opaque data is stored in the journal. The next worker sends it back with the tool's result."""

from __future__ import annotations

import json
from collections import deque
from typing import Any

import pytest
from support.contexts import new_context
from support.corpus import MODELS, Case, cases
from support.journals import MemoryJournal
from support.providers import Answer, FakeProvider

from pointsman.authoring.llm_agent import LLMAgent
from pointsman.authoring.tools import tool
from pointsman_schemas.strict_json import dump

CASES = [
    case for case in cases()
    if "sends_back" in case.expected.get("reply", {}) and case.expected["reply"].get("calls")
]  # fmt: skip


@tool(name="weather", idempotent=True)
async def weather(city: str) -> str:
    """The weather of a city."""
    return f"rain in {city}"


@pytest.mark.parametrize("case", CASES, ids=str)
async def test_a_worker_that_continues_sends_the_opaque_data_of_the_turn_before(case: Case) -> None:
    journal = MemoryJournal()
    async with FakeProvider(deque([Answer(body=case.sent), Answer("no", status=400), Answer("Rain.")])) as provider:
        for _ in range(2):  # the first worker fails after its tool call, and the second worker continues
            agent = agent_of(case, provider)
            context = new_context(journal=journal)
            try:
                answer: Any = await agent.run(context.handoff, context)
            except Exception as error:
                answer = error
            finally:
                await agent.close()

    first, broken, again = provider.calls
    assert answer == "Rain."
    assert broken.body == again.body, "the second worker did not send the same request as the first"
    for part in case.expected["reply"]["sends_back"]:
        assert json.dumps(part)[1:-1] in json.dumps(again.body)
        assert json.dumps(part)[1:-1] not in json.dumps(first.body)
    (kept,) = [step for step in journal.steps.values() if step.name == "answer-1"]
    assert kept.provider_state is not None
    assert b"provider_state" in dump(kept)


def agent_of(case: Case, provider: FakeProvider) -> LLMAgent:
    model = MODELS[case.dialect]("m", api_key="k", base_url=provider.openai_url, timeout=5)
    return LLMAgent(
        name="a", description="d", instructions="i", model=model, tools=[weather], stream=case.kind == "stream"
    )
