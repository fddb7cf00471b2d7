"""If an author's code raises an exception of any type, only the attempt ends, never the worker.

Class of fault: handlers of errors do not catch a `BaseException`, so it ends the worker with all of its agents.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from support import factory
from support.handoffs import SupervisorDouble

from pointsman import Context, LLMAgent, agent, tool
from pointsman.authoring.interceptor import AttemptInvocation, Interceptor, Next
from pointsman.bus.memory.bus import MemoryBus
from pointsman.engine.worker.engine import Worker
from pointsman.settings import Settings
from pointsman.testing import ScriptedModel, text_reply, tool_reply

SETTINGS = Settings(url="nats://nowhere:1")


class OddError(BaseException):
    """An exception that no handler of `Exception` catches."""


ERRORS: dict[str, Callable[[], BaseException]] = {
    "GeneratorExit": lambda: GeneratorExit("x"),
    "KeyboardInterrupt": lambda: KeyboardInterrupt("x"),
    "SystemExit": lambda: SystemExit(3),
    "CancelledError": lambda: asyncio.CancelledError("x"),
    "StopIteration": lambda: StopIteration("x"),
    "StopAsyncIteration": lambda: StopAsyncIteration("x"),
    "BaseExceptionGroup": lambda: BaseExceptionGroup("x", [KeyboardInterrupt(), GeneratorExit()]),
    "another BaseException": lambda: OddError("x"),
    "RecursionError": lambda: RecursionError("x"),
    "MemoryError": lambda: MemoryError(),
}


@agent
async def steady(request: str) -> str:
    """Answer."""
    return request


class Raising(Interceptor):
    def __init__(self, error: BaseException) -> None:
        self.error = error

    async def attempt(self, call: AttemptInvocation, next: Next[AttemptInvocation, Any]) -> Any:
        if call.handoff.to_agent == "intercepted":
            raise self.error
        return await next(call)


@pytest.mark.parametrize(
    "place", ["async function", "plain function", "nested call", "tool", "plain tool", "interceptor"]
)
@pytest.mark.parametrize("own_loop", [False, True], ids=["thread", "own loop"])
@pytest.mark.parametrize("name", ERRORS)
async def test_an_exception_of_any_type_ends_one_attempt(name: str, place: str, own_loop: bool) -> None:
    error = ERRORS[name]()

    async def fail(request: str) -> str:
        raise error

    def fail_plainly(request: str) -> str:
        raise error

    async def fail_in_a_task(request: str) -> str:
        async def inner() -> None:
            await asyncio.sleep(0)
            raise error

        try:
            await inner()
        finally:
            await asyncio.sleep(0)
        return ""

    async def use(context: Context) -> str:
        """Fail."""
        raise error

    def use_plainly(context: Context) -> str:
        """Fail."""
        raise error

    def thinker(used: Any) -> LLMAgent:
        model = ScriptedModel(tool_reply((used.name, {})), text_reply("done"))
        return LLMAgent(name="failing", description="d", instructions="i", model=model, tools=[used])

    make: Any = agent(name="failing", description="d")
    agents: dict[str, Callable[[], Any]] = {
        "async function": lambda: make(fail),
        "plain function": lambda: make(fail_plainly),
        "nested call": lambda: make(fail_in_a_task),
        "tool": lambda: thinker(tool(use)),
        "plain tool": lambda: thinker(tool(use_plainly)),
        "interceptor": lambda: agent(name="intercepted", description="d")(untouched),
    }
    failing = agents[place]()
    desk = SupervisorDouble(MemoryBus())
    worker = Worker(desk.bus, [failing, steady], SETTINGS, own_loop=own_loop, interceptors=[Raising(error)])

    async with factory.running(worker):
        result = await desk.result(await desk.publish_handoff(failing.card.name, "go"))
        again = await desk.result(await desk.publish_handoff("steady", "go", task="T2"))

    if place in ("tool", "plain tool"):
        assert result.status in ("succeeded", "failed")
    else:
        assert (result.status, result.error is not None and result.error.retryable) == ("failed", True)
    assert (again.status, again.output) == ("succeeded", "go")


async def untouched(request: str) -> str:
    return request
