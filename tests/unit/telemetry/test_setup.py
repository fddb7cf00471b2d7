from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace as otel
from opentelemetry.sdk.trace import TracerProvider

from pointsman import telemetry
from pointsman.settings import Settings
from pointsman.telemetry import content, export, traces


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(telemetry.logs, "configure", lambda settings: None)
    yield
    traces.use(None)


async def test_an_applications_own_provider_is_used_and_left_running(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    monkeypatch.setattr(otel, "get_tracer_provider", lambda: provider)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")

    started = telemetry.setup("x", settings=Settings())
    await started.shutdown()

    assert telemetry.tracing()


async def test_shutting_down_twice_is_shutting_down_once() -> None:
    started = telemetry.setup("x", settings=Settings())

    await started.shutdown()
    await started.shutdown()

    assert not telemetry.tracing()


async def test_a_flush_that_never_ends_is_given_up_in_time() -> None:
    import threading

    release, abandoned = threading.Event(), []
    pipeline = export.Pipeline(release.wait, lambda: abandoned.append(True), lambda: 0)
    begun = time.monotonic()

    in_time = await pipeline.close(0.05)
    took = time.monotonic() - begun
    release.set()

    assert not in_time
    assert took < 1
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

    assert export._exporters("TRACES") == expected


def test_what_the_user_says_of_the_resource_goes_above_what_we_say(monkeypatch: pytest.MonkeyPatch) -> None:
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

    assert content.mode_of(Settings(capture_content=ours)) == mode
