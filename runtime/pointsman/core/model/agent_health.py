"""Represent the circuits of failing agents as one value, which all supervisors of a namespace share.

An agent without an entry has a closed circuit. An agent with an entry receives no work before `until`, and then one
task, the probe. If the probe succeeds, the circuit closes. If the probe fails, the circuit stays open twice as long as
the last time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from pydantic import AwareDatetime

from pointsman_schemas.base import Frozen
from pointsman_schemas.events import AttemptError, ErrorKind
from pointsman_schemas.ids import AgentName

__all__ = [
    "Circuit",
    "Circuits",
    "Load",
    "close_circuit",
    "is_agent_fault",
    "open_circuit",
    "open_circuits",
    "probe_id",
    "release_probe",
    "start_probe",
]

_MAX_OPEN_S = 300.0  # an agent that was repaired is probed within five minutes

_WORKER_LOST_KINDS = frozenset({ErrorKind.CRASHED, ErrorKind.TIMEOUT})
"""Errors without an answer of the agent. These errors count against the agent, even if the task is not retried."""


class Circuit(Frozen):
    """The open circuit of an agent.

    Attributes:
        since: The time at which the circuit opened.
        until: The time before which the agent receives no work. With a probe: the time at which the probe expires.
        open_count: Number of times that the circuit opened in a row.
        probe: The attempt that tests the agent; empty if there is no probe.
    """

    since: AwareDatetime
    until: AwareDatetime
    open_count: int = 1
    probe: str = ""


class Circuits(Frozen):
    """The circuits that are not closed, by agent."""

    agents: Mapping[AgentName, Circuit] = {}


def is_agent_fault(error: AttemptError) -> bool:
    """Return True if a failed attempt counts against its agent.

    An error of the task does not count. After such an error a new attempt would not help, or the output failed a check.
    """
    return (error.retryable and error.kind != ErrorKind.INSUFFICIENT) or error.kind in _WORKER_LOST_KINDS


def open_circuits(circuits: Mapping[str, Circuit], alive: Collection[str], now: datetime) -> Mapping[str, Circuit]:
    """Return the circuits that are open `now`, of the agents that are `alive`.

    A circuit whose time has passed is not an alarm: the next task is the probe, and a success of the probe closes the
    circuit.
    """
    return {name: circuit for name, circuit in circuits.items() if name in alive and now < circuit.until}


def probe_id(workflow_id: str, task_id: str, attempt: int) -> str:
    """Return the id of an attempt as a probe."""
    return f"{workflow_id}/{task_id}/{attempt}"


def open_circuit(circuits: Circuits, agent: str, now: datetime, seconds: float) -> Circuits:
    """Open the circuit of `agent` for `seconds`; twice as long as the last time if the circuit was not closed since."""
    before = circuits.agents.get(agent)
    times = before.open_count + 1 if before else 1
    pause = min(seconds * 2 ** (times - 1), max(_MAX_OPEN_S, seconds))
    circuit = Circuit(since=before.since if before else now, until=now + timedelta(seconds=pause), open_count=times)
    return Circuits(agents={**circuits.agents, agent: circuit})


def start_probe(circuits: Circuits, agent: str, now: datetime, probe: str, until: datetime) -> Circuits | None:
    """Record that `probe` is sent to `agent`; None if the circuit must stay open, or a probe is in progress already."""
    circuit = circuits.agents.get(agent)
    if circuit is None or circuit.probe == probe:
        return circuits
    if now < circuit.until:
        return None
    return Circuits(agents={**circuits.agents, agent: circuit.model_copy(update={"probe": probe, "until": until})})


def release_probe(circuits: Circuits, agent: str, now: datetime) -> Circuits:
    """Remove a probe without a result: the next task is the probe."""
    circuit = circuits.agents.get(agent)
    if circuit is None:
        return circuits
    return Circuits(agents={**circuits.agents, agent: circuit.model_copy(update={"probe": "", "until": now})})


def close_circuit(circuits: Circuits, agent: str) -> Circuits:
    """Close the circuit of `agent`."""
    return Circuits(agents={name: circuit for name, circuit in circuits.agents.items() if name != agent})


@dataclass(frozen=True, slots=True)
class Load:
    """The load of an agent.

    Attributes:
        queued: Handoffs in the agent's queue and in progress.
        seconds: Average duration of the agent's recent attempts; None if the agent had no recent attempt.
    """

    queued: int = 0
    seconds: float | None = None

    def estimated_wait(self, more: int, slots: int, usual: float) -> float:
        """Return the seconds until the agent would finish a task that it receives after `more` other tasks.

        Args:
            more: Tasks that the agent receives before this task.
            slots: Tasks that the agent runs at the same time.
            usual: Seconds of a task of an agent without recent attempts.

        Returns:
            The seconds.
        """
        return (1 + (self.queued + more) / slots) * (usual if self.seconds is None else self.seconds)
