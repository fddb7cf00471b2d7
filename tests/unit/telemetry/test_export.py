"""The standard variables select the exporters. An unavailable backend causes no delay."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry import trace as otel
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support import factory
from support.factory import echo, planner_of, synthesizer
from support.prometheus import exposing, samples

from pointsman import telemetry
from pointsman.settings import Settings
from pointsman.telemetry import content_capture, export, otel_env, traces
from pointsman_schemas.team import Limits, Team

TEAM = Team(name="crew", limits=Limits(deadline=30))
TASK = {"id": "t1", "agent": "a", "intent": "help"}


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Clear the state before and after a test, because a remaining reader would export during a later test."""
    monkeypatch.setattr(telemetry.logs, "configure", lambda settings: None)
    yield
    traces.configure(None)
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("OtelPeriodic")]


async def test_an_applications_own_provider_is_used_and_left_running(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    monkeypatch.setattr(otel, "get_tracer_provider", lambda: provider)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")

    started = telemetry.setup("x", settings=Settings())
    await started.shutdown()

    assert telemetry.tracing_enabled()


async def test_shutting_down_twice_is_shutting_down_once() -> None:
    started = telemetry.setup("x", settings=Settings())

    await started.shutdown()
    await started.shutdown()

    assert not telemetry.tracing_enabled()


async def test_a_flush_that_never_ends_is_given_up_in_time() -> None:
    release, abandoned = threading.Event(), []
    pipeline = export.Pipeline(release.wait, lambda: abandoned.append(True), lambda: 0)
    ten_seconds = asyncio.create_task(asyncio.sleep(10))  # on the same event loop, because a busy machine delays both
    begun = time.monotonic()

    in_time = await pipeline.close(0.05)
    prompt, took = not ten_seconds.done(), time.monotonic() - begun
    release.set()
    ten_seconds.cancel()

    assert not in_time
    assert prompt
    assert took < 20  # the event loop was not blocked; the limit is long for a busy machine
    assert abandoned == [True]


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, []),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, ["otlp"]),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://x"}, ["otlp"]),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://x"}, []),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_TRACES_EXPORTER": "none"}, []),
        ({"OTEL_TRACES_EXPORTER": "otlp, Console"}, ["otlp", "console"]),
        ({"OTEL_TRACES_EXPORTER": "zipkin,console"}, ["console"]),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, []),
    ],
)
def test_the_standard_variables_choose_the_exporters(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: list[str]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert otel_env.requested_exporters("TRACES") == expected


@pytest.mark.parametrize("start", [export.start_traces, export.start_metrics, export.start_logs])
def test_disabled_sdk_sends_nothing(monkeypatch: pytest.MonkeyPatch, start: Callable[[str, str], object]) -> None:
    for signal in ("TRACES", "METRICS", "LOGS"):
        monkeypatch.setenv(f"OTEL_{signal}_EXPORTER", "otlp")
    monkeypatch.setenv("OTEL_SDK_DISABLED", "True")

    assert start("test", "") is None


def test_resource_attributes_of_the_user_override_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test,service.instance.id=mine")

    attributes = export._resource("supervisor", "s1").attributes

    assert attributes["service.name"] == "supervisor"
    assert attributes["service.instance.id"] == "mine"
    assert attributes["deployment.environment.name"] == "test"
    assert attributes["service.version"]


def test_the_public_names_are_these() -> None:
    assert all(hasattr(telemetry, name) for name in telemetry.__all__)


@pytest.mark.parametrize(
    ("ours", "standard", "mode"),
    [
        (None, "", "none"),
        (None, "true", "full"),
        (None, "SPAN_ONLY", "full"),
        (None, "redacted", "redacted"),
        (None, "false", "none"),
        (None, "nonsense", "none"),
        ("none", "true", "none"),
        ("redacted", "true", "redacted"),
    ],
)
def test_content_is_captured_as_the_setting_says_else_the_standard_variable(
    monkeypatch: pytest.MonkeyPatch, ours: Any, standard: str, mode: str
) -> None:
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", standard)

    assert content_capture.mode_of(Settings(capture_content=ours)) == mode


class TestLost:
    """A collector that refuses spans changes only a counter."""

    async def test_rejected_items_are_counted(self) -> None:
        class Refusing(InMemorySpanExporter):
            def export(self, spans: Any) -> SpanExportResult:
                return SpanExportResult.FAILURE

        with exposing() as figures:
            pipeline = export._build_traces([Refusing()], "x", "")
            async with factory.team(TEAM, [planner_of(TASK), synthesizer, echo("a")], settled=True) as client:
                outcome = await (await client.submit("crew", "hello")).outcome(20)
            await pipeline.close(10)
            lost = samples(figures)["pointsman_telemetry_dropped_total"]

        assert outcome.status == "completed"
        assert [labels["pointsman_signal"] for labels, _ in lost] == ["spans"]
        assert lost[0][1] == pipeline.undelivered() >= 8

    async def test_overflow_during_a_stuck_export_is_counted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "4")
        monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "2")
        hangs, release = threading.Event(), threading.Event()

        class Hanging(InMemorySpanExporter):
            def export(self, spans: Any) -> SpanExportResult:
                hangs.set()
                release.wait(30)
                return super().export(spans)

        with exposing() as figures:
            pipeline = export._build_traces([Hanging()], "x", "")
            for name in ("one", "two"):  # a full batch, during whose export no item is taken from the queue
                with traces.span(name):
                    pass
            assert await asyncio.to_thread(hangs.wait, 30)

            async with factory.team(TEAM, [planner_of(TASK), synthesizer, echo("a")], settled=True) as client:
                outcome = await (await client.submit("crew", "hello")).outcome(20)
            ((_, lost),) = samples(figures)["pointsman_telemetry_dropped_total"]
            release.set()
            await pipeline.close(10)

        assert outcome.status == "completed"
        assert lost > 0
        assert pipeline.undelivered() == lost

    async def test_every_span_is_delivered_or_counted_once_however_the_queue_is_emptied(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "4")
        monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1")
        exporter = InMemorySpanExporter()

        with exposing() as figures:
            pipeline = export._build_traces([exporter], "x", "")
            for _ in range(20_000):
                with traces.span("one"):
                    pass
            await pipeline.close(10)
            ((_, lost),) = samples(figures)["pointsman_telemetry_dropped_total"]

        assert 0 < lost == 20_000 - len(exporter.get_finished_spans())

    async def test_log_lines_that_the_collector_refuses_are_counted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "http://127.0.0.1:9/v1/logs")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.1")
        monkeypatch.setenv("OTEL_BLRP_SCHEDULE_DELAY", "60000")  # else the line about the failure might be sent, too

        with exposing() as figures:
            pipeline = export._build_logs("x", "")
            assert telemetry.logs._send is not None
            telemetry.logs._send(telemetry.logs.Line(1, "info", "said", "", "", {}))
            await pipeline.close(10)
            lost = samples(figures)["pointsman_telemetry_dropped_total"]

        assert lost == [({"pointsman_signal": "logs"}, 1)]

    def test_a_forked_process_begins_with_an_empty_queue(self) -> None:
        script = (
            "import os\n"
            "from pointsman.telemetry.fast.export_gate import ExportGate\n"
            "gate = ExportGate('spans', None, 1)\n"
            "assert gate.try_enter() and not gate.try_enter()\n"
            "gate._lock.acquire()\n"
            "child = os.fork()\n"
            "if child == 0:\n"
            "    os._exit(0 if gate.try_enter() else 1)\n"
            "assert os.waitpid(child, 0)[1] == 0\n"
            "assert not gate.try_enter()\n"
        )

        ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)

        assert ended.returncode == 0, ended.stderr
