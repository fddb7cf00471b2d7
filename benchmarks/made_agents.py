"""Compare an agent that a factory makes for each task with the same agent written by hand.

`python -m benchmarks.made_agents` runs both agents in turns on a real broker, with the journal. Each agent uses one
tool five times and answers with an object. The model answers at once, so the measured time is the time of the runtime.
"""

from __future__ import annotations

import asyncio
import statistics
from typing import Final
from uuid import uuid4

from pydantic import BaseModel, JsonValue

from benchmarks.tool_loop import ROUNDS, Prompt, look, measure
from pointsman.authoring.agent import Agent
from pointsman.authoring.agent_factory import AgentFactory
from pointsman.authoring.llm_agent import LLMAgent
from pointsman.bus.embedded_server import EmbeddedBroker
from pointsman.ports.model import ModelReply, ModelRequest
from pointsman.settings import Settings
from pointsman.testing.models import text_reply

__all__ = ["main"]

NEED: Final[JsonValue] = {
    "instructions": "i",
    "tools": ["look"],
    "input": {"number": 1},
    "output": {"said": "string"},
}


class Said(BaseModel):
    said: str


class TypedPrompt(Prompt):
    """Answers with the requested object."""

    async def complete(self, request: ModelRequest) -> ModelReply:
        reply = await super().complete(request)
        return reply if reply.calls else text_reply('{"said": "done"}')


def _agents() -> dict[str, Agent]:
    model = TypedPrompt()
    return {
        "standing": LLMAgent(
            name="looper", description="d", instructions="i", tools=[look], output=Said, model=model
        ),
        "made": AgentFactory(name="looper", description="d", tools=[look], model=model),
    }  # fmt: skip


async def main() -> None:
    settings = Settings(log_level="error")
    taken: dict[str, list[float]] = {"standing": [], "made": []}
    async with EmbeddedBroker() as broker:
        for _ in range(ROUNDS):
            for kind, agent in _agents().items():
                own = settings.model_copy(update={"url": broker.url, "namespace": f"b{uuid4().hex[:8]}"})
                taken[kind].append(await measure(own, agent, NEED))
    standing, made = (statistics.median(taken[kind]) * 1000 for kind in ("standing", "made"))
    print(f"an attempt by a standing agent {standing:.1f} ms, by one made for it {made:.1f} ms: "
          f"{made / standing:.2f} x, {made - standing:.2f} ms more")  # fmt: skip


if __name__ == "__main__":
    asyncio.run(main())
