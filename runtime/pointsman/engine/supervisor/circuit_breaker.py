"""The circuits of a namespace's agents. Supervisors share the circuits that are not closed, in one message.

Each supervisor counts the failures in its own commits. The supervisors share only the changes: a circuit opens, one
probe is sent, a circuit closes. While all circuits are closed, supervisors read and write no message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from contextlib import suppress
from datetime import datetime

from pointsman.core.decision import Probe
from pointsman.core.model.agent_health import (
    Circuit,
    Circuits,
    close_circuit,
    is_agent_fault,
    open_circuit,
    open_circuits,
    probe_id,
    release_probe,
    start_probe,
)
from pointsman.core.model.state import State, in_review
from pointsman.engine.operations.circuits import read_circuits
from pointsman.engine.process.retrying import retry_while_unavailable
from pointsman.errors import BusUnavailableError, ConflictError, PeerError
from pointsman.ports.bus import Bus, StoredMessage
from pointsman.ports.clock import Clock
from pointsman.telemetry import get_logger, metrics, semconv
from pointsman_schemas.log import Entry
from pointsman_schemas.strict_json import dump
from pointsman_schemas.subjects import Subjects

__all__ = ["CLOSED", "HALF_OPEN", "OPEN", "CircuitBreaker"]

CLOSED, HALF_OPEN, OPEN = 0, 1, 2
"""The values of the gauge of a circuit."""

_RETRY_PAUSE_S = 1.0  # seconds from a lost connection to the next subscription
_GAUGE_INTERVAL_S = 10.0  # seconds between two updates of the gauge, as for the gauges of queues

_log = get_logger(__name__)


class CircuitBreaker:
    """The circuits from the view of one supervisor.

    Args:
        bus: The bus.
        subjects: The subjects of the namespace.
        clock: The clock.
        failures: The number of different tasks in a row that fail at an agent before its circuit opens; 0 to open no
            circuit.
        seconds: The time for which an open circuit gets no tasks, in seconds.
    """

    def __init__(self, bus: Bus, subjects: Subjects, clock: Clock, *, failures: int, seconds: float) -> None:
        self._bus = bus
        self._subject = subjects.circuits
        self._clock = clock
        self._failures = failures
        self._seconds = seconds
        self._known = Circuits()
        self._sequence = 0
        self._failing: dict[str, set[str]] = {}
        self._stale: Set[str] = frozenset()  # agents that were not live at the last update
        self._changes: asyncio.Queue[Callable[[Circuits], Circuits]] = asyncio.Queue()

    @property
    def open_circuits(self) -> Mapping[str, Circuit]:
        """Return the circuits that are not closed, by agent."""
        return self._known.agents

    async def run(self) -> None:
        """Follow the changes of other supervisors and publish the changes of this supervisor, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_changes())
            group.create_task(self._publish_changes())
            if metrics.metrics_enabled():
                group.create_task(self._refresh_gauges())

    async def load(self) -> None:
        """Read the present circuits."""
        self._accept(await self._bus.last("limits", self._subject))

    async def claim_probes(self, probes: Mapping[str, Probe], now: datetime) -> bool:
        """Claim probes, because only one supervisor is allowed to send a probe to an agent.

        Args:
            probes: The probes, by agent.
            now: The time of the decision. After a timer fired, this time may be ahead of the clock.

        Returns:
            False if another supervisor has sent a probe to one of the agents, and this probe has not ended.
        """
        for agent, probe in probes.items():
            if not await self._claim_probe(agent, probe, now):
                return False
        return True

    def record(self, before: State | None, workflow_id: str, entries: Iterable[Entry]) -> None:
        """Count the failures and successes of committed entries.

        Args:
            before: The state before the commit.
            workflow_id: The workflow's id.
            entries: The entries.
        """
        for entry in entries:
            match entry.kind:
                case "task_succeeded" | "attempt_failed" | "task_abandoned" if in_review(before, entry.task_id):
                    pass  # no count, because the agent had answered before the review
                case "task_succeeded" | "review_requested":
                    self._on_success(entry.result.agent)
                case "attempt_failed" | "task_abandoned":
                    task = before.tasks.get(entry.task_id) if before is not None else None
                    if task is not None and task.attempt:
                        blamed = entry.kind == "attempt_failed" and is_agent_fault(entry.error)
                        probe = probe_id(workflow_id, task.id, task.attempt)
                        self._on_failure(task.agent, f"{workflow_id}/{task.id}", probe, blamed=blamed)
                case _:
                    pass

    def _on_success(self, agent: str) -> None:
        self._failing.pop(agent, None)
        if agent in self.open_circuits:
            self._changes.put_nowait(lambda known: close_circuit(known, agent))

    def _on_failure(self, agent: str, task: str, probe: str, *, blamed: bool) -> None:
        if agent in self.open_circuits:
            self._changes.put_nowait(lambda known: self._on_probe_ended(known, agent, probe, blamed=blamed))
        elif blamed and self._failures:
            failing = self._failing.setdefault(agent, set())
            failing.add(task)
            if len(failing) == self._failures:  # not `>=`: more failures may arrive before the circuit is open
                self._changes.put_nowait(lambda known: self._open(known, agent))

    def _open(self, known: Circuits, agent: str) -> Circuits:
        # Forget the failures even if another supervisor has opened the circuit. They must not count after it closes.
        self._failing.pop(agent, None)
        return known if agent in known.agents else open_circuit(known, agent, self._clock.now(), self._seconds)

    def _on_probe_ended(self, known: Circuits, agent: str, probe: str, *, blamed: bool) -> Circuits:
        circuit = known.agents.get(agent)
        if circuit is None or circuit.probe != probe:
            return known  # the attempt was sent before the circuit opened, so the attempt is not the probe
        now = self._clock.now()
        return open_circuit(known, agent, now, self._seconds) if blamed else release_probe(known, agent, now)

    async def _claim_probe(self, agent: str, probe: Probe, now: datetime) -> bool:
        lost = False

        def claim(known: Circuits) -> Circuits:
            nonlocal lost
            claimed = start_probe(known, agent, now, probe.name, probe.until)
            lost = claimed is None
            return known if claimed is None else claimed

        await self._update(claim)
        return not lost

    async def _follow_changes(self) -> None:
        while True:
            with suppress(BusUnavailableError):
                async for stored in self._bus.follow("limits", [self._subject], after=self._sequence):
                    if stored.sequence > self._sequence:
                        self._accept(stored)
                    elif stored.sequence < self._sequence:  # a late message, or a stream that was created again
                        await self.load()
            await self._clock.sleep(_RETRY_PAUSE_S)

    async def _publish_changes(self) -> None:
        while True:
            change = await self._changes.get()
            # Read first, because this process may not have received yet that another supervisor claimed a probe.
            await retry_while_unavailable(self.load, self._clock)
            await retry_while_unavailable(lambda: self._update(change), self._clock)  # noqa: B023  # it is awaited here

    async def _refresh_gauges(self) -> None:
        """Update the gauges regularly: no message announces that a circuit is half open, or that its agent stopped."""
        while True:
            with suppress(PeerError):  # without an answer, the gauge keeps its old values
                alive = {card.name for card in await self._bus.registry.cards()}
                self._stale = self.open_circuits.keys() - alive
                self._set_gauges(alive)
            await self._clock.sleep(_GAUGE_INTERVAL_S)

    def _set_gauges(self, alive: Collection[str]) -> None:
        alarms = open_circuits(self.open_circuits, alive, self._clock.now())
        for agent in self.open_circuits:
            about = {semconv.AGENT_NAME: agent}
            if agent in alive:
                circuit = alarms.get(agent)
                metrics.set_gauge(semconv.CIRCUIT_STATE, OPEN if circuit and not circuit.probe else HALF_OPEN, about)
            else:
                metrics.clear_gauge(semconv.CIRCUIT_STATE, about)

    async def _update(self, change: Callable[[Circuits], Circuits]) -> None:
        while (wanted := change(self._known)) != self._known:
            try:
                sequence = await self._bus.publish(self._subject, dump(wanted), {}, expect=self._sequence)
            except ConflictError:
                await self.load()
            else:
                if sequence > self._sequence:
                    self._set_known(wanted, sequence)
                return

    def _accept(self, stored: StoredMessage | None) -> None:
        self._set_known(read_circuits(stored), stored.sequence if stored else 0)

    def _set_known(self, circuits: Circuits, sequence: int) -> None:
        gone = self._known.agents.keys() - circuits.agents.keys()
        new = circuits.agents.keys() - self._known.agents.keys()
        self._known, self._sequence = circuits, sequence
        for agent in new:
            until = circuits.agents[agent].until
            if until > self._clock.now():  # otherwise the circuit opened before this supervisor started
                hint = f"tasks in a row failed; the agent gets no tasks until {until.isoformat(timespec='seconds')}"
                _log.warning("circuit_opened", agent=agent, hint=hint)
        for agent in gone:
            _log.info("circuit_closed", agent=agent)
            metrics.set_gauge(semconv.CIRCUIT_STATE, CLOSED, {semconv.AGENT_NAME: agent})
        self._set_gauges(circuits.agents.keys() - self._stale)  # the next update clears stopped agents
