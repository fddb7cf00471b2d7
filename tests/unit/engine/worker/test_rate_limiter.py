"""Processes share a provider's limits over the bus. After a provider demands a pause, all of them wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs
from support import factory
from support.handoffs import SupervisorDouble

from pointsman.authoring.llm_agent import LLMAgent
from pointsman.bus.memory.bus import MemoryBroker, MemoryBus
from pointsman.clock import SystemClock
from pointsman.core.budget.token_bucket import _BURST_SHARE, BucketState, ModelLimits
from pointsman.engine.worker.rate_limiter import BusRateLimiter
from pointsman.errors import ModelError, PeerError, PublishOutcomeUnknownError
from pointsman.llm.anthropic import AnthropicModel
from pointsman.llm.openai import OpenAIModel
from pointsman.llm.openai_responses import OpenAIResponsesModel
from pointsman.ports.bus import Bus
from pointsman.ports.clock import Clock
from pointsman.ports.model import Model, ModelReply, ModelRequest
from pointsman.settings import Settings
from pointsman.testing.clock import VirtualClock
from pointsman.testing.models import ScriptedModel, text_reply
from pointsman_schemas.subjects import Subjects


def meters(bus: Bus, clock: Clock | None = None, **limits: float) -> BusRateLimiter:
    return BusRateLimiter(bus, Subjects(), {"scripted": ModelLimits.model_validate(limits)}, clock or SystemClock())


async def left(bus: Bus) -> BucketState:
    stored = await bus.last("limits", ">")
    assert stored is not None
    return BucketState.model_validate_json(stored.body)


async def test_replicas_share_one_allowance_and_conflicts_lose_nothing() -> None:
    broker, clock = MemoryBroker(), VirtualClock()
    replicas = [meters(MemoryBus(broker=broker), clock, requests=600) for _ in range(4)]
    model = ScriptedModel()
    admitted: list[float] = []

    async def calls(each: BusRateLimiter) -> None:
        for _ in range(50):
            admission = await each.acquire(model, 1, 1000)
            assert admission is not None
            admitted.append(clock.monotonic())
            admission.release(1, None)

    async with asyncio.TaskGroup() as group:
        running = [group.create_task(calls(each)) for each in replicas]
        while not all(task.done() for task in running):
            await clock.advance(0.05)

    assert len(admitted) == 200
    assert 9.5 < max(admitted) < 15  # 100 at once, then ten per second


async def test_two_keys_of_a_model_have_limits_of_their_own() -> None:
    clock = VirtualClock()
    kept = meters(MemoryBus(broker=MemoryBroker()), clock, concurrency=1)
    mine, yours = ScriptedModel(), ScriptedModel()
    mine.account, yours.account = "mine", "yours"

    assert await kept.acquire(mine, 1, 10) is not None
    async with asyncio.timeout(5):
        assert await kept.acquire(yours, 1, 10) is not None
    waiting = asyncio.create_task(kept.acquire(mine, 1, 10))
    await clock.advance(5)
    assert not waiting.done()
    waiting.cancel()


async def test_limits_of_a_model_override_those_of_its_provider() -> None:
    one, two = ModelLimits(concurrency=1), ModelLimits(concurrency=2)
    limits = {"scripted": one, "scripted:large": two, "elsewhere": one}
    kept = BusRateLimiter(MemoryBus(broker=MemoryBroker()), Subjects(), limits, SystemClock())
    small, other, large, elsewhere = (ScriptedModel() for _ in range(4))
    small.name = elsewhere.name = "small"
    large.name, elsewhere.provider = "large", "elsewhere"

    for model in (small, other, large, large, elsewhere):
        assert await kept.acquire(model, 1, 0) is not None
    for model in (small, other, large, elsewhere):
        with pytest.raises(ModelError, match=f"the limits of {model.provider}:{model.name} allow no call"):
            await kept.acquire(model, 1, 0)


async def test_the_limit_of_patience_covers_the_whole_wait() -> None:
    clock = VirtualClock()
    kept = meters(MemoryBus(broker=MemoryBroker()), clock, concurrency=1)
    await kept.acquire(ScriptedModel(), 1, 10)

    waiting = asyncio.create_task(kept.acquire(ScriptedModel(), 1, 1))
    await clock.advance(0.5)
    assert not waiting.done()
    await clock.advance(1)

    with pytest.raises(ModelError):
        waiting.result()


async def test_unreadable_limits_are_rewritten_on_the_loop_of_the_bus() -> None:
    home, heard = asyncio.get_running_loop(), list[bool]()

    class Watched(MemoryBus):
        async def publish(self, *args: object, **more: object) -> int:
            heard.append(asyncio.get_running_loop() is home)
            return await super().publish(*args, **more)  # type: ignore[arg-type]

    bus, model = Watched(), ScriptedModel()
    await meters(bus, requests=60).acquire(model, 1, 10)
    stored = await bus.last("limits", ">")
    assert stored is not None
    await bus.publish(stored.subject, b'{"of": "another release"}', {})

    assert await asyncio.to_thread(asyncio.run, meters(bus, requests=60).acquire(model, 1, 10)) is not None
    assert (await left(bus)).requests == pytest.approx(9, abs=0.5)
    assert set(heard) == {True}


@pytest.mark.parametrize("model", [OpenAIModel, OpenAIResponsesModel, AnthropicModel])
def test_account_identifies_a_key_at_a_server_and_hides_it(model: Callable[..., Model]) -> None:
    def account(key: str, url: str) -> str:
        return model("m", api_key=key, base_url=url).account

    accounts = {account(key, url) for key in ("key-one", "key-two") for url in ("http://a/v1", "http://b/v1")}

    assert len(accounts) == 4
    assert account("key-one", "http://a/v1") in accounts
    assert not any("key" in each for each in accounts)


async def test_a_running_call_occupies_its_place_until_its_release() -> None:
    broker, clock = MemoryBroker(), VirtualClock()
    one, other = (meters(MemoryBus(broker=broker), clock, concurrency=1) for _ in range(2))
    model = ScriptedModel()

    first = await one.acquire(model, 1, 10)
    waiting = asyncio.create_task(other.acquire(model, 1, 10))
    await clock.advance(5)
    assert not waiting.done()
    assert first is not None
    first.release(1, None)
    await clock.advance(0.5)

    assert waiting.done()
    assert await waiting is not None


async def test_call_refused_in_time_is_told_when_to_retry() -> None:
    limited = meters(MemoryBus(), VirtualClock(), requests=6)
    model = ScriptedModel()
    await limited.acquire(model, 1, 10)

    with pytest.raises(ModelError, match="POINTSMAN_MODEL_LIMITS") as caught:
        await limited.acquire(model, 1, 2)

    assert (caught.value.kind, caught.value.retryable) == ("rate_limited", True)
    assert caught.value.retry_after == pytest.approx(10, abs=1)


async def test_unanswered_reservation_is_looked_up_and_counted_once() -> None:
    class Unanswered(MemoryBus):
        failing = True

        async def publish(self, *args: object, **more: object) -> int:
            sequence = await super().publish(*args, **more)  # type: ignore[arg-type]
            if self.failing:
                self.failing = False
                raise PublishOutcomeUnknownError("no answer")
            return sequence

    bus, clock = Unanswered(), VirtualClock()
    limited = meters(bus, clock, requests=60, tokens=60_000)

    admitting = asyncio.create_task(limited.acquire(ScriptedModel(), 4000, 10))
    await clock.advance(0.5)
    admission = await admitting
    taken = await left(bus)
    bus.failing = True
    assert admission is not None
    admission.release(3400, None)
    await clock.advance(0.5)

    assert (taken.requests, taken.tokens) == pytest.approx((9, 6_000))
    assert len(taken.calls) == 1
    given = await left(bus)
    assert given.tokens == pytest.approx(7_200)  # 600 released tokens and the refill of 0.6 s
    assert given.calls == {}


async def test_unlimited_model_costs_no_message() -> None:
    bus = MemoryBus()

    assert (
        await BusRateLimiter(bus, Subjects(), {"openai": ModelLimits(requests=1)}, SystemClock()).acquire(
            ScriptedModel(), 1, 10
        )
        is None
    )
    assert await bus.last("limits", ">") is None


async def test_a_provider_s_pause_holds_back_every_worker() -> None:
    clock = VirtualClock()
    broker = MemoryBroker(clock=clock)
    settings = Settings(model_limits={"scripted": ModelLimits(requests=6000)})
    calls: list[float] = []

    def answer(request: ModelRequest) -> ModelReply:
        calls.append(clock.monotonic())
        return text_reply("done")

    def agent(name: str, *script: object) -> LLMAgent:
        return LLMAgent(name=name, description="d", instructions="i", model=ScriptedModel(*script))  # type: ignore[arg-type]

    def told(request: ModelRequest) -> ModelReply:
        calls.append(clock.monotonic())
        raise ModelError("slow down", retryable=True, retry_after=0.6)

    desk = SupervisorDouble(MemoryBus(broker=broker), clock=clock)
    one = factory.worker(broker.connect(), agent("one", told, answer), settings=settings, clock=clock)
    other = factory.worker(broker.connect(), agent("other", answer), settings=settings, clock=clock)
    async with factory.running(one), factory.running(other):
        first = await desk.publish_handoff("one")
        while not calls:
            await clock.settle()
        second = await desk.publish_handoff("other", task="T2")
        for _ in range(20):  # enough turns of the event loop for a model call
            await clock.settle()
        assert len(calls) == 1
        await clock.advance(1)
        results = [await desk.result(first), await desk.result(second)]

    assert [result.status for result in results] == ["succeeded", "succeeded"]
    assert min(calls[1:]) - calls[0] >= 0.59


async def test_a_call_that_is_cancelled_during_its_reservation_releases_it() -> None:
    broker = MemoryBroker()
    stored = asyncio.Event()

    class Slow(MemoryBus):
        async def publish(self, *args: object, **kwargs: object) -> int:
            sequence = await super().publish(*args, **kwargs)  # type: ignore[arg-type]
            if not stored.is_set():
                stored.set()
                await asyncio.Event().wait()
            return sequence

    limited = meters(Slow(broker=broker), VirtualClock(), concurrency=1, tokens=100)
    asking = asyncio.create_task(limited.acquire(ScriptedModel(), 30, 10))
    await stored.wait()
    assert len((await left(broker.connect())).calls) == 1

    asking.cancel()
    await asyncio.wait({asking})
    await asyncio.sleep(0)  # the release runs in another task
    await limited.close()

    there = await left(broker.connect())
    assert there.calls == {}
    assert there.tokens == pytest.approx(ModelLimits(tokens=100).tokens * _BURST_SHARE, rel=0.01)  # type: ignore[operator]


async def test_failed_release_is_logged_in_one_line() -> None:
    class Refusing(MemoryBus):
        refuses = False

        async def publish(self, *args: object, **kwargs: object) -> int:
            if self.refuses:
                raise PeerError("the broker refuses it")
            return await super().publish(*args, **kwargs)  # type: ignore[arg-type]

    bus = Refusing()
    limited = meters(bus, concurrency=1)
    admission = await limited.acquire(ScriptedModel(), 1, 10)
    assert admission is not None
    bus.refuses = True

    with capture_logs() as lines:
        admission.release(1, None)
        await asyncio.sleep(0)
        await limited.close()

    assert [(line["event"], line["error"]) for line in lines] == [
        ("model_limit_release_failed", "the broker refuses it")
    ]
