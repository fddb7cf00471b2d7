"""The number of function calls that telemetry makes for a workflow. Every machine counts the same number."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import opentelemetry
import pytest
from support import factory
from support.calls import counting
from support.factory import echo, planner_of, synthesizer

from pointsman import telemetry
from pointsman.bus.jetstream.bus import JetStreamBus, connect
from pointsman.settings import Settings
from pointsman.telemetry import traces
from pointsman.telemetry.fast.export_gate import ExportGate
from pointsman_schemas.team import Team

_TASKS: list[dict[str, Any]] = [
    {"id": "t1", "agent": "a", "intent": "Do nothing for t1"},
    {"id": "t2", "agent": "a", "intent": "Do nothing for t2"},
    {"id": "t3", "agent": "b", "intent": "Do nothing for t3"},
    {"id": "join", "agent": "b", "intent": "Do nothing for join", "depends_on": ["t1", "t2", "t3"]},
]
_AGENTS = [planner_of(*_TASKS), echo("a"), echo("b"), synthesizer]
_WARM_UP, _COUNTED = 5, 4  # workflows
_NO_COLLECTOR = "http://127.0.0.1:9"
_PLACES = tuple(str(Path(each)) for each in (*telemetry.__path__, *opentelemetry.__path__))
_WITHOUT, _WITH, _AWAY = 600, 2_150, 1_550
"""Limits of the calls for a workflow without a collector, with a collector, and with an unavailable collector.
Measured: 553, 2,060 and 1,460, of 17,000 calls in all."""


@pytest.mark.timeout(120)
async def test_telemetry_adds_few_calls_and_fewer_while_its_collector_is_away(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings.model_copy(update={"log_level": "warning", "heartbeat": 60.0})  # no heartbeat is counted
    without = await _calls(settings)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", _NO_COLLECTOR)
    for variable in ("OTEL_BSP_SCHEDULE_DELAY", "OTEL_METRIC_EXPORT_INTERVAL"):  # no export while calls are counted
        monkeypatch.setenv(variable, "600000")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "2048")
    exporting = telemetry.setup("counted", settings=settings)
    try:
        with_it = await _calls(settings)
        gate = cast(ExportGate, traces._sink)
        gate._failed()
        gate._retried_at += 600
        away = await _calls(settings)
    finally:
        await exporting.shutdown(0.1)

    assert without < _WITHOUT
    assert with_it < _WITH
    assert away < _AWAY


async def _calls(settings: Settings) -> float:
    """Return the number of function calls that telemetry makes for one workflow, in all processes and in the caller."""
    async with _running(settings) as caller, aclosing(_outcomes(caller, settings)) as outcomes:

        async def play(count: int) -> None:
            """Run workflows one after another, because concurrent inputs would be batched differently each time."""
            for _ in range(count):
                await caller.publish(f"{settings.namespace}.request.crew.anonymous", b'{"input": "hello"}', {})
                assert b'"status":"completed"' in await anext(outcomes)

        await play(_WARM_UP)
        with counting(_PLACES) as counted:
            await play(_COUNTED)
    return counted[0] / _COUNTED


async def _outcomes(caller: JetStreamBus, settings: Settings) -> AsyncGenerator[bytes, None]:
    newest = await caller.last("log", f"{settings.namespace}.outcome.crew.*")
    subjects = [f"{settings.namespace}.outcome.crew.*"]
    async for stored in caller.follow("log", subjects, after=newest.sequence if newest else 0):
        yield stored.body


@asynccontextmanager
async def _running(settings: Settings) -> AsyncIterator[JetStreamBus]:
    watcher = telemetry.bus_observer()
    caller = await connect(settings, name="caller", wait=5.0)
    buses = [await connect(settings, name=name, wait=5.0, observer=watcher) for name in ("worker", "supervisor")]
    await caller.set_up()
    worker = factory.worker(buses[0], *_AGENTS, settings=settings)
    async with factory.running(worker, factory.supervisor(buses[1], Team(name="crew"), settings=settings)):
        yield caller
    for bus in (caller, *buses):
        await bus.close()
