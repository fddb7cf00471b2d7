"""Measure the cost of the journal: the same tool loop with and without the journal, in turns, on a real broker.

`python -m benchmarks.tool_loop` runs an agent that calls one tool five times and then answers. The model answers at
once, so the measured time is the time of the runtime alone.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from datetime import UTC, datetime, timedelta
from uuid import uuid4

from pydantic import JsonValue

from pointsman.authoring.agent import Agent
from pointsman.authoring.llm_agent import LLMAgent
from pointsman.authoring.tools import tool
from pointsman.bus.embedded_server import EmbeddedBroker
from pointsman.bus.jetstream.bus import JetStreamBus, connect
from pointsman.engine.worker.engine import Worker
from pointsman.ports.model import ModelReply, ModelRequest
from pointsman.settings import Settings
from pointsman.testing.models import text_reply, tool_reply
from pointsman_schemas.envelope import Envelope, encode
from pointsman_schemas.events import Handoff
from pointsman_schemas.strict_json import dump
from pointsman_schemas.subjects import Subjects

__all__ = ["ROUNDS", "Prompt", "look", "main", "measure"]

TURNS = 5  # rounds with one tool call: a loop of the usual length
ATTEMPTS = 40  # attempts in each round, one after the other
ROUNDS = 5


@tool(idempotent=True)
async def look(number: int) -> str:
    """Look something up."""
    return "x" * 200


class Prompt:
    """A model that answers at once and uses the tool `TURNS` times."""

    provider = "prompt"
    name = "prompt"
    account = ""

    async def complete(self, request: ModelRequest) -> ModelReply:
        done = sum(turn.role == "tool" for turn in request.turns)
        return tool_reply(("look", {"number": done})) if done < TURNS else text_reply("done")

    async def close(self) -> None:
        pass


async def main() -> None:
    settings = Settings(log_level="error")
    async with EmbeddedBroker() as broker:
        taken: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(ROUNDS):
            for journal in (False, True):
                own = settings.model_copy(
                    update={"url": broker.url, "namespace": f"b{uuid4().hex[:8]}", "journal": journal}
                )
                agent = LLMAgent(name="looper", description="d", instructions="i", tools=[look], model=Prompt())
                taken[journal].append(await measure(own, agent))
    without, with_ = (statistics.median(taken[journal]) * 1000 for journal in (False, True))
    print(f"an attempt of {TURNS} turns: {without:.1f} ms without the journal, {with_:.1f} ms with it, "
          f"{(with_ - without) / (2 * TURNS):.2f} ms a step")  # fmt: skip


async def measure(settings: Settings, agent: Agent, input: JsonValue = None) -> float:
    """Return the seconds from a handoff to its result. The name of `agent` must be looper, as in the handoff."""
    bus = await connect(settings, name="bench", wait=10.0)
    await bus.set_up()
    stop = asyncio.Event()
    running = asyncio.create_task(Worker(bus, [agent], settings, own_loop=True).run(stop))
    try:
        await attempt(bus, settings, 0, input)
        began = time.perf_counter()
        for number in range(1, ATTEMPTS + 1):
            await attempt(bus, settings, number, input)
        return (time.perf_counter() - began) / ATTEMPTS
    finally:
        stop.set()
        await running
        await bus.close()


async def attempt(bus: JetStreamBus, settings: Settings, number: int, input: JsonValue) -> None:
    subjects, workflow = Subjects(settings.namespace), f"wf_{number}"
    handoff = Handoff(
        workflow_id=workflow, task_id="T1", attempt=1, from_agent="bench", to_agent="looper", intent="loop",
        return_to=subjects.result("bench", "looper", workflow, "T1", 1, "token"),
        deadline=datetime.now(UTC) + timedelta(60), idempotency_key=workflow, input=input,
    )  # fmt: skip
    envelope = Envelope(
        id=workflow, type=Handoff.event_type, source="/bench", time=datetime.now(UTC), subject=workflow,
        correlation_id=workflow,
    )  # fmt: skip
    answered = asyncio.Event()

    async def heard(_: object) -> None:
        answered.set()

    async with await bus.listen(handoff.return_to, heard):
        await bus.publish(subjects.handoff("looper", "bench", workflow, "T1", 1), dump(handoff), encode(envelope))
        await asyncio.wait_for(answered.wait(), 30)


if __name__ == "__main__":
    asyncio.run(main())
