"""Simulate agents. Their behaviour depends only on the seed, the attempt and the number of starts."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from pydantic import JsonValue

from pointsman.authoring.agent import Agent
from pointsman.authoring.context import Context
from pointsman.errors import AnswerRequiredError, RefusedError, TaskError
from pointsman.testing.simulation import SimulatedProcess
from pointsman_schemas.card import AgentCard, Role
from pointsman_schemas.events import Handoff, QuestionRequest, Usage

__all__ = ["CARDS", "WORKERS", "SimulatedAgent", "SimulatedAgents"]

_OVERSIZE_CHARS = 1_100_000  # characters: larger than the broker's limit of a message
_MAX_RESULT_CHARS = 1_048_000  # fits into a result, but its log entry is too large
_HALF_HANDOFF_CHARS = 600_000  # two such results do not fit into one handoff


def _card(name: str, role: Role = Role.WORK, **more: Any) -> AgentCard:
    return AgentCard(name=name, description=f"does what {name} does", role=role, **more)


CARDS = {
    card.name: card
    for card in (
        _card("alpha", fallback="beta", concurrency=2, timeout=6.0, reacts_to=("requested", "news"), skills=("craft",)),
        _card("beta", concurrency=1, reacts_to=("news",), skills=("craft",)),
        _card("gamma", fallback="leaver", timeout=30.0),
        _card("leaver"),
        _card("planner", Role.PLAN),
        _card("classifier", Role.CLASSIFY),
        _card("synthesizer", Role.SYNTHESIZE),
        _card("reviewer", Role.JUDGE),
    )
}
WORKERS = tuple(card.name for card in CARDS.values() if card.role is Role.WORK)


class SimulatedAgents:
    """The behaviour of all agents of one world. `crash` may kill the given process. With `asks`, some tasks and calls
    need an approval. Some agents read the messages to their workflow. An attempt that is restarted in another process
    must read the same messages; each difference is added to `problems`."""

    def __init__(
        self, seed: int, crash: Callable[[SimulatedProcess, str], bool], problems: list[str], *, asks: bool
    ) -> None:
        self._seed = seed
        self._crash = crash
        self._asks = asks
        self._problems = problems
        self.reads: dict[tuple[str, str, int, int], tuple[str, ...]] = {}
        """The texts of each read of an attempt."""
        self._attempts_started: Counter[tuple[str, str, int]] = Counter()

    async def work(self, handoff: Handoff, context: Context, process: SimulatedProcess) -> JsonValue:
        key = (handoff.workflow_id, handoff.task_id, handoff.attempt)
        self._attempts_started[key] += 1
        chance = Random(f"{self._seed}/{key}/{self._attempts_started[key]}")
        context.record_usage(Usage(calls=1, input_tokens=chance.randint(10, 100), output_tokens=10))
        listens = Random(f"{self._seed}/listens/{key}").random() < 0.3
        if listens:
            await self._read(context, key, 1)
        if chance.random() < 0.3 and self._crash(process, f"while it works on {handoff.task_id}"):
            await asyncio.sleep(0)  # the process is killed here
        await asyncio.sleep(self._pause(chance))
        if listens:
            await self._read(context, key, 2)
        if chance.random() < (0.25 if handoff.role is Role.WORK else 0.12):
            return self._trouble(chance)
        match handoff.role:
            case Role.PLAN:
                return self._plan(chance, handoff)
            case Role.CLASSIFY:
                chosen = chance.sample(WORKERS, chance.randint(0, 2))
                return {
                    "agents": [
                        {**self._agent_or_skill(chance, name), "confidence": round(chance.random(), 2)}
                        for name in chosen
                    ]
                }
            case Role.SYNTHESIZE:
                return {"answer": f"{len(handoff.context)} results"}
            case Role.JUDGE:
                verdict = chance.choices(["pass", "again", "stop", "perhaps"], [6, 3, 1, 0.5])[0]
                return {"verdict": verdict, "reason": "so it is"}
            case Role.REFINE:
                raise AssertionError("no team here has a refiner")
            case Role.SUMMARIZE:
                return {"summary": f"{handoff.task_id} of {handoff.workflow_id}"}
            case Role.WORK:
                self._ask(handoff)
                if chance.random() < 0.1:
                    context.replan("there is a better way")
                if chance.random() < 0.3:
                    await context.emit(chance.choice(["news", "news", "over", "nothing"]), handoff.task_id)
                return {"done": handoff.task_id, "knowing": [report.task_id for report in handoff.context]}

    async def _read(self, context: Context, key: tuple[str, str, int], number: int) -> None:
        texts = tuple(message.text for message in await context.messages())
        first = self.reads.setdefault((*key, number), texts)
        if texts != first:
            self._problems.append(
                f"read {number} of attempt {key} has {len(texts)} messages; the first had {len(first)}"
            )

    def _ask(self, handoff: Handoff) -> None:
        chance = Random(f"{self._seed}/asking/{handoff.workflow_id}/{handoff.task_id}")
        if self._asks and not handoff.answers and chance.random() < 0.3:
            amounts = range(chance.randint(1, 2))
            asked = [QuestionRequest(tool="pay", arguments={"amount": amount}) for amount in amounts]
            if (informs := Random(f"{chance.random()}/informs")).random() < 0.6:
                asked[0] = self._question("asked-1", informs)
            raise AnswerRequiredError(asked)

    @staticmethod
    def _question(key: str, chance: Random) -> QuestionRequest:
        return QuestionRequest(
            about="information",
            key=key,
            text="How many?",
            input_schema={"type": "integer"},
            timeout=chance.choice([None, 1.0]),
            has_default=chance.random() < 0.5,
            default=None,
        )

    def _approval(self, task_id: str) -> dict[str, JsonValue]:
        asks = self._asks and Random(f"{self._seed}/asking/{task_id}").random() < 0.3
        return {"approval": "required"} if asks else {}

    @staticmethod
    def _pause(chance: Random) -> float:
        """Return a mostly short pause. Some pauses exceed the ack deadline, and a few exceed every deadline."""
        kind = chance.choices(["none", "short", "slow", "never"], [3, 5, 1, 0.3])[0]
        return {"none": 0.0, "short": chance.uniform(0.0, 1.0), "slow": chance.uniform(2.0, 9.0), "never": 1e4}[kind]

    @staticmethod
    def _trouble(chance: Random) -> JsonValue:
        kinds: dict[str, float] = {
            "transient": 5, "later": 2, "terminal": 2, "refused": 1, "bug": 2, "nan": 0.5, "cancelled": 0.5,
            "huge": 0.15, "almost": 0.1, "half": 0.3,
        }  # fmt: skip
        match chance.choices(list(kinds), list(kinds.values()))[0]:
            case "transient":
                raise TaskError("not this time", retryable=True)
            case "later":
                raise TaskError("not now", retryable=True, retry_after=chance.uniform(0.0, 6.0))
            case "terminal":
                raise TaskError("never")
            case "refused":
                raise RefusedError("not me", retryable=chance.random() < 0.3)
            case "bug":
                raise ValueError("a bug of the agent's")
            case "cancelled":
                raise asyncio.CancelledError
            case "nan":
                return float("nan")
            case "huge":
                return "x" * _OVERSIZE_CHARS
            case "almost":
                return "x" * _MAX_RESULT_CHARS
            case _:
                return "x" * _HALF_HANDOFF_CHARS

    def _plan(self, chance: Random, handoff: Handoff) -> JsonValue:
        asked = handoff.input if isinstance(handoff.input, dict) else {}
        menu = asked.get("agents")
        names = [str(item["name"]) for item in menu if isinstance(item, dict)] if isinstance(menu, list) else []
        kind = chance.choices(["good", "unknown", "cycle", "text", "empty", "cannot"], [20, 1, 1, 1, 0.5, 0.5])[0]
        asks = asked.get("may_ask") and Random(f"{self._seed}/asks/{handoff.task_id}").random() < 0.4
        if asks and len(handoff.answers) < 2:
            return {"tasks": [], "questions": [{"question": "For when?"}, {"question": "How?", "choices": ["a", "b"]}]}
        if kind == "text":
            return "first this, then that"
        if asked.get("adaptive") and asked.get("results") and chance.random() < 0.4:
            return {"done": True}
        if kind == "empty" or not names:
            return {"tasks": []}
        if kind == "cannot":
            return {"tasks": [], "cannot": "there is no way"}
        names += ["below", "below"] * ("below" in names)  # nested teams get tasks as often as the team's own agents
        prefix = f"{handoff.task_id[-1]}{handoff.attempt}"
        most = asked.get("max_tasks")
        count = min(chance.randint(1, 5), most if isinstance(most, int) else 5)
        ids = [f"t{prefix}-{number}" for number in range(count)]
        tasks: list[JsonValue] = []
        for number, task_id in enumerate(ids):
            needs = chance.sample(ids[:number], min(number, chance.choice([0, 0, 1, 1, 2])))
            optional = [name for name in needs if chance.random() < 0.3]
            tasks.append(
                {
                    "id": task_id,
                    **SimulatedAgents._agent_or_skill(
                        chance, "ghost" if kind == "unknown" and number == 0 else chance.choice(names)
                    ),
                    "intent": f"do the work of {task_id}",
                    "depends_on": [*(name for name in needs if name not in optional), *(ids[-1:] * (kind == "cycle"))],
                    "optional_dependencies": list(optional),
                    **self._approval(task_id),
                }
            )
        return {"goal": "serve the request", "tasks": tasks, "final_instruction": "be brief"}

    @staticmethod
    def _agent_or_skill(chance: Random, name: str) -> dict[str, JsonValue]:
        """Return the agent called `name`, or a reference to its skill."""
        skills = CARDS[name].skills if name in CARDS else ()
        return {"skill": skills[0]} if skills and chance.random() < 0.4 else {"agent": name}


class SimulatedAgent(Agent):
    """An agent of the crew in one process."""

    def __init__(self, name: str, crew: SimulatedAgents, process: SimulatedProcess) -> None:
        self._card = CARDS[name]
        self._crew = crew
        self._process = process

    @property
    def card(self) -> AgentCard:
        return self._card

    async def run(self, handoff: Handoff, context: Context) -> JsonValue:
        return await self._crew.work(handoff, context, self._process)
