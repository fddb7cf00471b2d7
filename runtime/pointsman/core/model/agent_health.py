"""Agents that keep failing, as one value that all supervisors of a namespace share: who gets no work, and until when.

An agent that is not in it is well. One that is gets nothing before `until`, and then one task, the probe: if that
succeeds its circuit is closed, if it fails the circuit stays open twice as long as the last time.
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

_MAX_OPEN_S = 300.0  # seconds: an agent that was repaired is found out about within five minutes

_WORKER_LOST_KINDS = frozenset({ErrorKind.CRASHED, ErrorKind.TIMEOUT})
"""Nobody answered: it says nothing of the task, and much of the agent, whether or not another attempt is of use."""


class Circuit(Frozen):
    """An agent that is sent no work before `until`. `opened` counts how often in a row. `probe` is the attempt that is
    to show whether it is well again; while there is one, `until` is when nobody waits for it any more."""

    since: AwareDatetime
    until: AwareDatetime
    open_count: int = 1
    probe: str = ""


class Circuits(Frozen):
    """Every circuit that is not closed, by agent."""

    agents: Mapping[AgentName, Circuit] = {}


def is_agent_fault(error: AttemptError) -> bool:
    """Whether a failed attempt says that its agent is not well. It does not when the task is to blame, which another
    attempt would not help, or when the agent answered and somebody wanted more."""
    return (error.retryable and error.kind != ErrorKind.INSUFFICIENT) or error.kind in _WORKER_LOST_KINDS


def open_circuits(circuits: Mapping[str, Circuit], alive: Collection[str], now: datetime) -> Mapping[str, Circuit]:
    """What is an alarm `now`, of the agents that are `alive`. Whose time has come is none: it is idle, or a task is
    coming, and nothing but one that is done well ends it."""
    return {name: circuit for name, circuit in circuits.items() if name in alive and now < circuit.until}


def probe_id(workflow_id: str, task_id: str, attempt: int) -> str:
    """What an attempt is called as a probe."""
    return f"{workflow_id}/{task_id}/{attempt}"


def open_circuit(circuits: Circuits, agent: str, now: datetime, seconds: float) -> Circuits:
    """`agent` gets no work for `seconds`, twice as long as the last time if its circuit was not closed since."""
    before = circuits.agents.get(agent)
    times = before.open_count + 1 if before else 1
    pause = min(seconds * 2 ** (times - 1), max(_MAX_OPEN_S, seconds))
    circuit = Circuit(since=before.since if before else now, until=now + timedelta(seconds=pause), open_count=times)
    return Circuits(agents={**circuits.agents, agent: circuit})


def start_probe(circuits: Circuits, agent: str, now: datetime, probe: str, until: datetime) -> Circuits | None:
    """`probe` is on its way to `agent`; None when it is too early for that, or another one is on its way."""
    circuit = circuits.agents.get(agent)
    if circuit is None or circuit.probe == probe:
        return circuits
    if now < circuit.until:
        return None
    return Circuits(agents={**circuits.agents, agent: circuit.model_copy(update={"probe": probe, "until": until})})


def release_probe(circuits: Circuits, agent: str, now: datetime) -> Circuits:
    """The probe has shown nothing: the next task is one."""
    circuit = circuits.agents.get(agent)
    if circuit is None:
        return circuits
    return Circuits(agents={**circuits.agents, agent: circuit.model_copy(update={"probe": "", "until": now})})


def close_circuit(circuits: Circuits, agent: str) -> Circuits:
    """`agent` is well."""
    return Circuits(agents={name: circuit for name, circuit in circuits.agents.items() if name != agent})


@dataclass(frozen=True, slots=True)
class Load:
    """`queued` are the handoffs in its queue and those it works on; `seconds` what one took lately, None when none
    did."""

    queued: int = 0
    seconds: float | None = None

    def estimated_wait(self, more: int, slots: int, usual: float) -> float:
        """Seconds until a task would be done that is handed over after `more` others, by an agent that works on `slots`
        at a time; `usual` where nobody knows what one takes."""
        return (1 + (self.queued + more) / slots) * (usual if self.seconds is None else self.seconds)
