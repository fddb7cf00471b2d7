"""If a server refuses a named parameter, the request is repeated once without it. Later requests omit it."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import JsonValue
from support.contexts import new_context
from support.corpus import MODELS, refusals
from support.loops import InstantClock, Place
from support.providers import Answer, Call, FakeProvider

from pointsman.authoring.context import Context
from pointsman.authoring.llm_agent import LLMAgent
from pointsman.authoring.tools import tool
from pointsman.errors import ModelError, TaskError
from pointsman.llm.provider_model import ProviderModel
from pointsman.ports.model import ModelReply, ModelRequest, ToolCall, Turn
from pointsman_schemas.events import Budget, Usage

CASES = refusals()
CITY: dict[str, JsonValue] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 50}},
    "required": ["city"],
}


def model_for(case: dict[str, Any], provider: FakeProvider) -> ProviderModel:
    return MODELS[case["dialect"]](case.get("model", "m"), api_key="k", base_url=provider.openai_url, timeout=5)


def asked(case: dict[str, Any], model: ProviderModel) -> ModelRequest:
    turns: tuple[Turn, ...] = (Turn("user", "hello"),)
    if "state" in case:
        state = {"origin": model._origin(model.name), **case["state"]}
        called = Turn("assistant", "", (ToolCall("c", "look", "{}"),), provider_state=state)
        turns = (*turns, called, Turn("tool", "seen", call_id="c"))
    return ModelRequest(
        model="",
        instructions="Be brief.",
        turns=turns,
        max_tokens=900,
        temperature=0.5,
        output_schema=CITY if case.get("schema") else None,
        on_text=(lambda _: None) if case.get("stream") else None,
    )


async def adapted(model: ProviderModel, request: ModelRequest) -> ModelReply:
    """Return the reply. The adapter may learn from up to three refusals first."""
    refused: list[ModelError] = []
    while len(refused) < 3:
        try:
            reply = await model.complete(request)
            break
        except ModelError as error:
            refused.append(error)
    else:
        raise refused[-1]
    assert all(error.adapted for error in refused)
    assert [(error.retryable, error.usage) for error in refused] == [(True, Usage(calls=1))] * len(refused)
    return reply


def good(call: Call) -> Answer:
    structured = "response_format" in call.body or "text" in call.body or "JSON Schema" in call.prompt
    return Answer('{"city": "Oslo"}' if structured else "hi")


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["name"]))
async def test_a_parameter_that_is_refused_by_name_is_left_out_or_renamed_from_then_on(case: dict[str, Any]) -> None:
    refused = Answer(status=case["status"], body=json.dumps(case["body"]).encode())
    refusing = [refused] * (2 if case.get("twice") else 1)
    async with FakeProvider(deque([*refusing, good, good])) as provider:
        model, another = model_for(case, provider), model_for(case, provider)
        request = asked(case, model)
        await adapted(model, request)
        await another.complete(request)  # the adapter of another agent in the same process
        await model.close()
        await another.close()

    first, *_, second, third = [call.body for call in provider.calls]
    assert len(provider.calls) == len(refusing) + 2
    assert second == third
    assert first != second
    for name in case.get("lacks", ()):
        assert name in first
        assert name not in second
    for name, value in case.get("has", {}).items():
        assert second[name] == value
    for name, most in case.get("at_most", {}).items():
        assert 64 <= second[name] <= most
    assert case.get("says", "") in json.dumps(second)
    if "says_no" in case:
        assert case["says_no"] in json.dumps(first)
        assert case["says_no"] not in json.dumps(second)


async def test_the_limits_of_a_server_are_forgotten_when_the_last_of_its_models_is_closed() -> None:
    case = next(case for case in CASES if case["name"] == "OpenAI: a temperature")
    refused = Answer(status=case["status"], body=json.dumps(case["body"]).encode())
    async with FakeProvider(deque([refused, *[good] * 4])) as provider:
        first, second = model_for(case, provider), model_for(case, provider)
        request = asked(case, first)
        await adapted(first, request)
        await second.complete(request)
        await first.close()
        await second.complete(request)
        await second.close()
        later = model_for(case, provider)  # `first` and `second` still exist, as a part of their closed agents
        await later.complete(request)
        await later.close()

    assert ["temperature" in call.body for call in provider.calls] == [True, False, False, False, True]


REFUSED = Answer(
    status=400,
    body=json.dumps({"error": {"message": "This response_format type is unavailable now", "code": "x"}}).encode(),
)


async def test_a_refusal_is_counted_as_a_call_and_a_limit_of_calls_holds() -> None:
    async with FakeProvider(deque([REFUSED, Answer('{"city": "Oslo"}')])) as provider:
        agent = agent_at(provider)
        context = Context.for_test("where?")
        found = await agent.run(context.handoff, context)
        await agent.close()
    async with FakeProvider(deque([REFUSED, Answer('{"city": "Oslo"}')])) as bounded:
        agent = agent_at(bounded)
        limited = new_context(update={"budget": Budget(calls=1)})
        with pytest.raises(TaskError, match="used of 1 allowed") as caught:
            await agent.run(limited.handoff, limited)
        await agent.close()

    assert (found, context.usage.calls, len(provider.calls)) == ({"city": "Oslo", "people": 0}, 2, 2)
    assert context.usage.input_tokens == 11, "the refused request was counted"
    assert (caught.value.kind, len(bounded.calls), limited.usage.calls) == ("limit", 1, 1)


def agent_at(provider: FakeProvider, **more: Any) -> LLMAgent:
    model = MODELS["chat_completions"]("m", api_key="k", base_url=provider.openai_url, timeout=5)
    return LLMAgent(
        name="a", description="d", instructions="i", model=model, output=Place, clock=InstantClock(), **more
    )


async def test_a_server_that_refuses_everything_is_left_after_a_bounded_number_of_requests() -> None:
    def refuse(call: Call) -> Answer:
        name = next(iter(set(call.body) - {"model", "messages", "stream"}), "messages")
        return Answer(status=400, body=json.dumps({"error": {"message": f"'{name}' is not supported"}}).encode())

    async with FakeProvider(deque([refuse] * 30)) as provider:
        agent = agent_at(provider, temperature=0.5, tools=[look])
        context = Context.for_test("where?")
        with pytest.raises(ModelError, match="not supported"):
            await agent.run(context.handoff, context)
        await agent.close()

    assert len(provider.calls) <= 9
    assert context.usage.calls >= len(provider.calls) - 1


@tool
async def look() -> str:
    """Look."""
    return "seen"


@pytest.mark.parametrize("together", [2, 3])
async def test_agents_that_are_refused_at_the_same_time_all_continue(together: int) -> None:
    import asyncio

    def strict(call: Call) -> Answer:
        return REFUSED if "json_schema" in json.dumps(call.body.get("response_format", "")) else Answer('{"city": "O"}')

    answers: deque[Callable[[Call], Answer]] = deque([strict] * 10)
    async with FakeProvider(answers) as provider:  # type: ignore[arg-type]
        agents = [agent_at(provider) for _ in range(together)]
        contexts = [Context.for_test("where?") for _ in agents]
        found = await asyncio.gather(
            *(agent.run(context.handoff, context) for agent, context in zip(agents, contexts, strict=True))
        )
        for agent in agents:
            await agent.close()

    assert found == [{"city": "O", "people": 0}] * together
