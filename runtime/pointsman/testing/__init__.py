"""What tests of agents and of teams need: no broker, no network, no real time.

| | |
|---|---|
| `MemoryBus`, `MemoryBroker` | the bus inside the process; what holds on it holds on JetStream |
| `VirtualClock` | time that stands still until the test moves it |
| `ScriptedModel`, `text_reply`, `tool_reply` | a model that says what it was told to say |
| `planner.with_model(model)` | the planner that ships, or any `LLMAgent`, with its own prompt on such a model |
| `RecordingReporter` | what `Context.for_test(..., reporter=RecordingReporter())` was told: reports, events, texts |
| `run_team`, `running_team` | a whole team in the test's own process, from a request to its outcome, in milliseconds |
| `forbid_real_models` | no call of a model that costs money; as a pytest plugin: `pointsman.testing.pytest_plugin` |
| `simulate`, `SimulatedProcess`, `SimulatedClock` | a whole system in one loop: time jumps, processes die |
| `EndlessSimulationError` | what a simulation raises that never comes to rest |
| `FaultyBus`, `Faults` | a bus that fails the way buses do, by chance drawn from a seed |
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
