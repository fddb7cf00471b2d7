"""Run the real system under measurement: one supervisor and four agents as `pointsman` processes, and a client here."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from time import monotonic

from benchmarks.machine import Children
from benchmarks.team import AGENTS, TEAM
from pointsman.bus.jetstream.bus import JetStreamBus, connect
from pointsman.client.client import Client
from pointsman.ports.bus import StoredMessage
from pointsman.settings import Settings
from pointsman_schemas.events import Outcome
from pointsman_schemas.strict_json import parse

__all__ = ["RealSystem"]

_START_TIMEOUT_S = 60.0  # seconds in which all cards and consumers must exist
_POLL_INTERVAL_S = 0.05
_WORKFLOW_TIMEOUT_S = 120.0  # the run fails if a workflow takes longer


class RealSystem:
    """A whole system in its own namespace.

    Args:
        name: The namespace, and the prefix of its processes.
        url: The URL of the broker.
        children: The starter of the processes.
        environment: Additional environment variables of the processes.
        apart: True if handoffs are in a stream that is not synced.
        together: True if the agents share one process, called `agents`.
        counted: True if the processes log the number of their objects once a minute.
    """

    def __init__(
        self,
        name: str,
        url: str,
        children: Children,
        environment: Mapping[str, str],
        *,
        apart: bool = False,
        together: bool = False,
        counted: bool = False,
    ) -> None:
        self.name = name
        self.settings = Settings(url=url, namespace=name, unsynced_handoffs=apart)
        self._children = children
        self._module = "benchmarks.counted" if counted else "pointsman"
        self._environment = {
            "POINTSMAN_URL": url,
            "POINTSMAN_NAMESPACE": name,
            "POINTSMAN_UNSYNCED_HANDOFFS": str(apart),
            **environment,
        }
        self._waiting: dict[str, asyncio.Future[StoredMessage]] = {}
        self._workers = {"agents": AGENTS} if together else {agent: (agent,) for agent in AGENTS}

    @property
    def processes(self) -> dict[str, int]:
        """Process ids by part."""
        return {part: self._children.pids[f"{self.name}-{part}"] for part in ("supervisor", *self._workers)}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[RealSystem]:
        await self.start("supervisor", "supervisor", "benchmarks.team:TEAM")
        for part, agents in self._workers.items():
            await self.start(part, "worker", *(f"benchmarks.team:{agent}" for agent in agents))
        async with AsyncExitStack() as stack:
            self.bus: JetStreamBus = await connect(self.settings, name="bench", wait=5.0)
            stack.push_async_callback(self.bus.close)
            await self.bus.set_up()
            self.client = Client(self.bus, namespace=self.name)
            await self._wait_until_ready()
            listening = asyncio.create_task(self._listen())
            stack.callback(listening.cancel)
            yield self

    async def submit(self, shape: str) -> str:
        """Run a workflow of this shape to its end, and return the workflow's id."""
        workflow = await self.client.submit(TEAM.name, shape)
        await self.ended(workflow.id)
        return workflow.id

    async def ended(self, workflow: str) -> None:
        """Wait until the workflow has completed."""
        ended = self._waiting.setdefault(workflow, asyncio.get_running_loop().create_future())
        try:
            stored = await asyncio.wait_for(ended, _WORKFLOW_TIMEOUT_S)
        except TimeoutError:
            self._children.check()
            raise RuntimeError(f"the workflow {workflow} has no outcome after {_WORKFLOW_TIMEOUT_S:g} s") from None
        del self._waiting[workflow]
        outcome = parse(Outcome, stored.body)
        if outcome.status != "completed":
            raise RuntimeError(f"the workflow {workflow} is {outcome.status}: {outcome.reason}")

    async def stored(self) -> tuple[int, int]:
        """Return the number and the bytes of the messages in the streams of the system."""
        states = [(await self.bus.api(f"STREAM.INFO.{name}"))["state"] for name in self._streams()]
        return sum(state["messages"] for state in states), sum(state["bytes"] for state in states)

    async def kinds(self) -> Counter[str]:
        """Count the messages in the streams by kind: request, handoff, result, timer, schedule, log, outcome."""
        found: Counter[str] = Counter()
        for name in self._streams():
            info = await self.bus.api(f"STREAM.INFO.{name}", {"subjects_filter": f"{self.name}.>"})
            for subject, count in (info["state"].get("subjects") or {}).items():
                found[subject.split(".")[1]] += count
        return found

    def _streams(self) -> list[str]:
        subjects = self.client.subjects
        apart = [subjects.handoff_stream] if self.bus.handoffs_unsynced else []
        inbound = [subjects.request_stream, subjects.control_stream, subjects.result_stream]
        return [*inbound, subjects.work_stream, *apart, subjects.log_stream]

    async def start(self, part: str, *arguments: str) -> None:
        """Start another process of this namespace: `pointsman ARGUMENTS`, called `part`."""
        name = f"{self.name}-{part}"
        await self._children.start(name, self._module, *arguments, "--with-parent", environment=self._environment)

    async def _wait_until_ready(self) -> None:
        """Wait until the team's consumers exist and every agent's card is announced."""
        deadline = monotonic() + _START_TIMEOUT_S
        while monotonic() < deadline:
            self._children.check()
            agents = {card.name for card in await self.client.operations.agents()}
            supervised = await self.bus.depth(f"result-{TEAM.name}", "results") is not None
            if supervised and agents >= set(AGENTS):
                return
            await asyncio.sleep(_POLL_INTERVAL_S)
        raise RuntimeError(
            f"the system is not ready after {_START_TIMEOUT_S:g} s: {self._children.log(f'{self.name}-supervisor')}"
        )

    async def _listen(self) -> None:
        """Read all outcomes with one reader, because each reader needs its own consumer."""
        async for stored in self.bus.follow("log", [self.client.subjects.team_outcomes(TEAM.name)]):
            future = self._waiting.setdefault(stored.subject.split(".")[-1], asyncio.get_running_loop().create_future())
            with suppress(asyncio.InvalidStateError):
                future.set_result(stored)
