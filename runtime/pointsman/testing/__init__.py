"""Test agents and teams without a broker, a network or real time.

| Name | Use |
|---|---|
| `MemoryBus`, `MemoryBroker` | a bus in memory that passes the same contract tests as JetStream |
| `VirtualClock` | a clock that moves only when the test moves it; for a whole team use `running_team(..., clock=...)` |
| `ScriptedModel`, `text_reply`, `tool_reply` | a model with prepared replies |
| `planner.with_model(model)` | the shipped planner, or any `LLMAgent`, with its own prompt and a scripted model |
| `RecordingReporter` | the reports, events and texts of `Context.for_test(..., reporter=RecordingReporter())` |
| `run_team`, `running_team` | a whole team in the test's own process, from a request to its outcome, in milliseconds |
| `forbid_real_models` | refuses calls of paid models; as a pytest plugin: `pointsman.testing.pytest_plugin` |
| `simulate`, `SimulatedProcess`, `SimulatedClock` | a whole system in one loop: time jumps, processes are killed |
| `EndlessSimulationError` | raised by a simulation that does not end |
| `FaultyBus`, `Faults` | a bus with the typical faults of a broker, at random from a seed |
"""

from __future__ import annotations

from pointsman.authoring.ports import RecordingReporter
from pointsman.bus.memory.bus import MemoryBroker, MemoryBus
from pointsman.llm.network_guard import forbid_real_models
from pointsman.testing.clock import VirtualClock
from pointsman.testing.faults import Faults, FaultyBus
from pointsman.testing.models import ScriptedModel, text_reply, tool_reply
from pointsman.testing.simulation import EndlessSimulationError, SimulatedClock, SimulatedProcess, simulate
from pointsman.testing.team import run_team, running_team

__all__ = [
    "EndlessSimulationError",
    "Faults",
    "FaultyBus",
    "MemoryBroker",
    "MemoryBus",
    "RecordingReporter",
    "ScriptedModel",
    "SimulatedClock",
    "SimulatedProcess",
    "VirtualClock",
    "forbid_real_models",
    "run_team",
    "running_team",
    "simulate",
    "text_reply",
    "tool_reply",
]
