"""Define the circuits of failing agents. All circuits are one value, which the supervisors of a namespace share.

An agent without an entry has a closed circuit. An agent with an entry receives no work before `until`. Then the agent
receives one task, the probe. If the probe succeeds, the circuit closes. If the probe fails, the circuit opens again,
for twice the time.
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

_MAX_OPEN_S = 300.0  # longest pause before a probe, in seconds: a repaired agent is probed within five minutes

_WORKER_LOST_KINDS = frozenset({ErrorKind.CRASHED, ErrorKind.TIMEOUT})
"""Kinds of errors of an attempt that the agent did not answer. These errors count against the agent, even if the task
is not retried."""


class Circuit(Frozen):
    """The open circuit of an agent.

    Attributes:
        since: The time at which the circuit opened.
        until: The time before which the agent receives no work; while a probe is in progress, the time at which the
            probe expires.
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

    An error that the task causes does not count. Such an error is not retryable, or the output has failed a check.
    """
    return (error.retryable and error.kind != ErrorKind.INSUFFICIENT) or error.kind in _WORKER_LOST_KINDS


def open_circuits(circuits: Mapping[str, Circuit], alive: Collection[str], now: datetime) -> Mapping[str, Circuit]:
    """Return the circuits of `alive` agents that are open at the time `now`.

    A circuit whose time has passed is left out, because the next task is the probe and might close the circuit.
    """
    return {name: circuit for name, circuit in circuits.items() if name in alive and now < circuit.until}


def probe_id(workflow_id: str, task_id: str, attempt: int) -> str:
    """Return the id of an attempt that is a probe."""
    return f"{workflow_id}/{task_id}/{attempt}"


def open_circuit(circuits: Circuits, agent: str, now: datetime, seconds: float) -> Circuits:
    """Open the circuit of `agent` for `seconds`. Each further opening in a row lasts twice as long, within a bound."""
    before = circuits.agents.get(agent)
    times = before.open_count + 1 if before else 1
    pause = min(seconds * 2 ** (times - 1), max(_MAX_OPEN_S, seconds))
    circuit = Circuit(since=before.since if before else now, until=now + timedelta(seconds=pause), open_count=times)
    return Circuits(agents={**circuits.agents, agent: circuit})


def start_probe(circuits: Circuits, agent: str, now: datetime, probe: str, until: datetime) -> Circuits | None:
    """Record that `probe` is sent to `agent`. Return None if the circuit must stay open or has a probe already."""
    circuit = circuits.agents.get(agent)
    if circuit is None or circuit.probe == probe:
        return circuits
    if now < circuit.until:
        return None
    return Circuits(agents={**circuits.agents, agent: circuit.model_copy(update={"probe": probe, "until": until})})


def release_probe(circuits: Circuits, agent: str, now: datetime) -> Circuits:
    """Remove a probe that has no result, so that the next task of the agent becomes the probe."""
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
        queued: Number of handoffs in the agent's queue and in progress.
        seconds: Average duration of the agent's recent attempts; None if the agent had no recent attempt.
    """

    queued: int = 0
    seconds: float | None = None

    def estimated_wait(self, more: int, slots: int, usual: float) -> float:
        """Return the estimated seconds until the agent finishes a new task, if `more` other tasks are sent first.

        Args:
            more: Tasks that are sent to the agent before the new task.
            slots: Number of tasks that the agent runs at the same time.
            usual: Assumed seconds of a task, if the agent has no recent attempts.

        Returns:
            The seconds.
        """
        return (1 + (self.queued + more) / slots) * (usual if self.seconds is None else self.seconds)
