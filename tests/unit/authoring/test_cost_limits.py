"""With a cost limit, a model without a price is not called. The worker, doctor and the error report this."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs
from support.contexts import new_context
from support.loops import InstantClock

from pointsman.authoring.context import Context
from pointsman.authoring.llm_agent import LLMAgent
from pointsman.bus.memory.bus import MemoryBus
from pointsman.cli.support.checks import _check_prices
from pointsman.engine.worker.engine import Worker
from pointsman.errors import TaskError
from pointsman.llm.prices import PRICES, has_price, with_named_cost
from pointsman.ports.model import ModelReply, ModelRequest
from pointsman.settings import Settings
from pointsman.testing.models import ScriptedModel, text_reply
from pointsman_schemas.card import AgentCard
from pointsman_schemas.events import Budget, Usage
from pointsman_schemas.team import Limits, PlanAndExecute, Team


class Named(ScriptedModel):
    """A scripted model with the name of a provider whose prices are published."""

    def __init__(self, provider: str, name: str, *replies: ModelReply) -> None:
        super().__init__(*replies)
        self.provider, self.name = provider, name

    async def complete(self, request: ModelRequest) -> ModelReply:
        return await super().complete(request)


async def run(*models: Named, cost: float | None = 0.5) -> tuple[Any, Context]:
    agent = LLMAgent(name="a", description="d", instructions="i", model=models, clock=InstantClock())
    context = new_context(update={"budget": Budget(cost=cost)})
    return await agent.run(context.handoff, context), context


async def test_a_model_without_a_price_is_not_asked_within_a_cost_limit() -> None:
    model = Named("openai", "my-own", text_reply("never"))

    with pytest.raises(
        TaskError, match=r"price of openai:my-own is not known, so the cost limit of \$0.5 cannot"
    ) as caught:
        await run(model)

    assert (caught.value.kind, model.requests) == ("limit", [])


@pytest.mark.parametrize(
    "second", [Named("openai", "gpt-4.1", text_reply("here")), Named("mine", "m", text_reply("here"))]
)
async def test_the_next_model_that_has_a_price_or_reports_costs_is_asked(second: Named) -> None:
    first = Named("anthropic", "my-own", text_reply("never"))

    answer, _ = await run(first, second)

    assert (answer, first.requests) == ("here", [])


@pytest.mark.parametrize("price", [(1.0, 2.0), (0.0, 0.0)])
async def test_an_own_price_of_zero_is_a_price(price: tuple[float, float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRICES, "my-own", price)

    assert (await run(Named("openai", "my-own", text_reply("here"))))[0] == "here"


async def test_without_a_cost_limit_a_model_needs_no_price() -> None:
    assert (await run(Named("openai", "my-own", text_reply("here")), cost=None))[0] == "here"


@pytest.mark.parametrize(
    ("provider", "model", "known"),
    [("openai", "gpt-4.1", True), ("openai", "my-own", False), ("anthropic", "gpt-4.1", False), ("mine", "x", True)],
)
async def test_a_price_is_known_or_not(provider: str, model: str, known: bool) -> None:
    assert await has_price(provider, model) is known


async def test_a_worker_names_each_of_its_models_that_has_no_price() -> None:
    models = [Named("openai", "my-own"), Named("openai", "gpt-4.1"), Named("mine", "m")]
    agent = LLMAgent(name="a", description="d", instructions="i", model=models)

    with capture_logs() as logs:
        await Worker(MemoryBus(), [agent], Settings())._warn_about_prices()

    told = [(line["event"], line["agent"], line["model"]) for line in logs]
    assert told == [("model_price_unknown", "a", "openai:my-own")]


def card(model: str | None) -> AgentCard:
    return AgentCard(name="a", description="d", model=model, instance="i")


@pytest.mark.parametrize(
    ("cost", "models", "ok", "words"),
    [
        (0.5, ["openai:my-own"], False, "no price is known of a: openai:my-own"),
        (0.5, ["openai:gpt-4.1", "offline", None], True, "the price of each model is known"),
        (None, ["openai:my-own"], True, "no price is known of a: openai:my-own"),
    ],
)
async def test_doctor_names_the_models_that_a_cost_limit_keeps_from_working(
    cost: float | None, models: list[str | None], ok: bool, words: str
) -> None:
    team = Team(name="t", agents=("a",), strategy=PlanAndExecute(), limits=Limits(cost=cost))

    check = await _check_prices(team, {"a": [card(model) for model in models]})

    assert (check.name, check.ok, check.finding) == ("prices", ok, words)


MILLION = Usage(calls=1, input_tokens=1_000_000, output_tokens=500_000)


@pytest.mark.parametrize(
    "model", ["openai:gpt-4.1", "gpt-4.1", "openai-responses:gpt-4.1", "openai:gpt-4.1-2025-04-14"]
)
def test_usage_that_a_handler_records_with_its_model_is_priced(model: str) -> None:
    context = Context.for_test("x")

    context.record_usage(MILLION, model=model)

    assert context.usage == MILLION.model_copy(update={"cost": 6.0})


def test_recorded_usage_keeps_the_cost_it_has_and_an_unknown_model_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRICES, "ft:mine", (1.0, 2.0))
    context = Context.for_test("x")

    context.record_usage(MILLION.model_copy(update={"cost": 0.25}), model="openai:gpt-4.1")
    context.record_usage(MILLION, model="ft:mine")
    with capture_logs() as logs:
        context.record_usage(MILLION, model="openai:nobody-knows")
        context.record_usage(MILLION)

    assert (context.usage.cost, context.usage.calls) == (2.25, 4)
    assert [(line["event"], line["model"]) for line in logs] == [("model_price_unknown", "openai:nobody-knows")]
    assert with_named_cost("mystery:gpt-4.1", MILLION).cost == 0.0
