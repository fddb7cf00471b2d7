"""All fields of a lean span equal the fields of the SDK's span."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry import trace as otel
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from structlog.testing import capture_logs
from support.prometheus import exposing, samples

from pointsman.telemetry import export, traces
from pointsman.telemetry.fast.lean_spans import EncodedSpan, LeanSpan, SpanRecorder
from pointsman.telemetry.fast.otlp_exporter import span_exporter
from pointsman.telemetry.trace_context import to_otel
from pointsman.telemetry.traces import SpanEvent, TraceContext, record, span

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = TraceContext(TRACE, "b7ad6b7169203331", 1)
STATED = TraceContext(TRACE, "b7ad6b7169203331", 3, "a=1,b=2")
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
MANY = {f"key {number}": number for number in range(200)}
TEXTS = {f"text of {length}": "é" * length for length in (0, 1, 63, 64, 65, 127, 128, 16_384)}
NUMBERS = {str(value): value for value in (0, 1, True, False, 1.5, -1, -(2**63), 2**63 - 1)}
SEQUENCES: dict[str, Any] = {"texts": ("a", "é"), "none": None, "empty": ()}


@pytest.fixture(autouse=True)
def off_afterwards() -> Iterator[None]:
    yield
    traces.configure(None)


class Collector:
    """A replacement for a collector that records the exported bodies."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.there = True

    def export(self, body: bytes) -> Any:
        if self.there:
            self.bodies.append(body)
        return SimpleNamespace(success=self.there, error=None, status_code=None)

    def shutdown(self) -> None: ...

    def spans(self) -> dict[str, Any]:
        """Return the exported spans by name."""
        found = {}
        for body in self.bodies:
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                for scope in resource.scope_spans:
                    for one in scope.spans:
                        found[one.name] = one, resource.resource, scope.scope, scope.schema_url, resource.schema_url
        return found


def exporting_to(collector: Collector) -> export.Pipeline:
    exporter = span_exporter("otlp")
    exporter._client = collector
    return export._build_traces([exporter], "service", "one")


def nested() -> None:
    with span("outer", kind="consumer", parent=STATED, attributes={**TEXTS, **NUMBERS}, links=[PARENT]) as outer:
        with span("inner", kind="client", attributes=SEQUENCES) as inner:
            inner.set_attributes({"one": 1, "none": None}, two=("x", "y"))
            inner.add_event("happened", {"n": 2, "texts": ["a"]})
        outer.add_event("bare")


def failing() -> None:
    with pytest.raises(ZeroDivisionError), span("failed", parent=PARENT):
        _ = 1 / 0
    with span("said", parent=PARENT, kind="producer") as opened:
        opened.set_failed("first", "the key sk-abcdefghijklmnop was refused")
        opened.set_failed("second")


def recorded() -> None:
    for name, parent, context in (("root", None, PARENT), ("child", "00f067aa0ba902b7", STATED)):
        record(
            name,
            context=context,
            parent_span_id=parent,
            kind="internal",
            started=NOON,
            ended=NOON + SECOND,
            attributes={**TEXTS, **NUMBERS, **SEQUENCES},
            error=("refused", "it was \ud800") if parent else None,
            happenings=[SpanEvent("happened", NOON + SECOND / 2, {"n": 1, "none": None})],
            links=[PARENT],
        )
    record("early", context=PARENT, parent_span_id="00f067aa0ba902b7", started=NOON + SECOND, ended=NOON)


def by_others() -> None:
    """Make all calls on the current span that the author of a tool may make."""
    with span("ours", parent=PARENT, attributes={"kept": 1}):
        current = otel.get_current_span()
        assert current.is_recording()
        current.set_attribute("mapping", {"a": {"b": [1, None, b"x"]}})
        current.set_attribute("no kind of value", object())  # type: ignore[arg-type]
        current.set_attribute("", 1)
        current.set_attributes(MANY)
        current.add_event("told", {"a": 1}, 5)
        for number in range(200):
            current.add_event(f"event {number}", {"n": number})
        current.add_link(otel.SpanContext(3, 4, is_remote=True), {"why": "it came again"})
        current.add_link(otel.SpanContext(0, 0, is_remote=True))
        current.set_status(otel.StatusCode.ERROR, "bad")
        current.set_status(otel.Status(otel.StatusCode.OK))
        current.set_status(otel.StatusCode.ERROR, "late")
        current.update_name("theirs")
    current.set_attribute("too late", 1)
    current.update_name("too late")
    current.end()
    with span("caught", parent=PARENT):
        try:
            _ = 1 / 0
        except ZeroDivisionError as error:
            otel.get_current_span().record_exception(error, {"more": 1})


def wrongly() -> None:
    """Pass values that the types forbid but authors may pass."""
    with span("wrong", parent=PARENT):
        current = otel.get_current_span()
        current.set_attribute(1, "a number's")  # type: ignore[arg-type]
        current.set_attribute("right", True)
        current.set_attributes({2: "two", "three": 3, "": "nothing", None: 4})  # type: ignore[dict-item]
        current.set_status(otel.StatusCode.ERROR, ValueError("no text"))  # type: ignore[arg-type]
    with span("wrong again", parent=PARENT):
        otel.get_current_span().set_status(otel.StatusCode.OK, "not for this")


def linking() -> None:
    """Add more links than a span allows, so the oldest links are dropped."""
    many = [TraceContext(TRACE, f"{number:016x}", 1) for number in range(1, 201)]
    with span("from its beginning", parent=PARENT, links=many):
        pass
    with span("later", parent=PARENT, links=many[:100]):
        for link in many:
            otel.get_current_span().add_link(to_otel(link, remote=link.span_id[-1] == "0"), {"of": link.span_id})
    record("recorded", context=PARENT, parent_span_id=None, started=NOON, ended=NOON, links=many)


@pytest.mark.parametrize("work", [nested, failing, recorded, by_others, wrongly, linking])
async def test_lean_span_equals_the_sdk_span_on_the_wire(
    monkeypatch: pytest.MonkeyPatch, work: Callable[[], None]
) -> None:
    seen = []
    for ours in (True, False):
        if not ours:
            # The default value, but if it is set, the SDK's spans are used.
            monkeypatch.setenv("OTEL_SPAN_LINK_COUNT_LIMIT", "128")
        collector = Collector()
        pipeline = exporting_to(collector)
        assert (traces._recorder is not None) is ours
        work()
        await pipeline.close(10)
        found = collector.spans()
        assert len(found) > 1
        seen.append({name: _plain(found, name, timed=work is recorded) for name in found})

    assert seen[0] == seen[1]


def _plain(found: dict[str, Any], name: str, *, timed: bool) -> Any:
    """Drop unsampled spans. The next sampled parent gets their children."""
    one, *context = found[name]
    names = {other.span_id: other.name for other, *_ in found.values()}
    plain = type(one).FromString(one.SerializeToString())
    times = plain.start_time_unix_nano, plain.end_time_unix_nano
    assert times[0] <= times[1]
    parent = names.get(plain.parent_span_id, plain.parent_span_id)
    plain.ClearField("parent_span_id")
    plain.ClearField("span_id")
    if not timed:
        plain.ClearField("start_time_unix_nano")
        plain.ClearField("end_time_unix_nano")
        for event in plain.events:
            event.ClearField("time_unix_nano")
    for event in plain.events:  # stack traces differ, because some contain frames of the SDK
        for pair in event.attributes:
            if pair.key == "exception.stacktrace":
                pair.value.string_value = pair.value.string_value.splitlines()[-1]
    said = [str(each) for each in context]
    return str(plain), sorted(map(str, plain.attributes)), parent, said


async def test_processor_added_after_shutdown_does_not_restart_tracing() -> None:
    pipeline = export._build_traces([span_exporter("otlp")], "service", "one")
    provider: Any = export._own_providers[-1]
    await pipeline.close(10)

    provider.add_span_processor(SimpleSpanProcessor(InMemorySpanExporter()))

    assert not traces.tracing_enabled()


async def test_a_span_that_cannot_be_encoded_costs_itself_and_reports_it() -> None:
    collector = Collector()
    pipeline = exporting_to(collector)

    with capture_logs() as lines:
        with span("before", parent=PARENT):
            pass
        with span("broken", parent=PARENT):
            otel.get_current_span().add_event("told", timestamp="noon")  # type: ignore[arg-type]
        with span("after", parent=PARENT):
            pass
        await pipeline.close(10)

    assert set(collector.spans()) == {"before", "after"}
    assert [line["span"] for line in lines if line["event"] == "span_encode_failed"] == ["broken"]
    assert pipeline.undelivered() == 1


async def test_waiting_spans_are_held_as_bytes_except_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "2000")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "60000")
    collector = Collector()
    pipeline = exporting_to(collector)
    waiting: list[EncodedSpan] = []

    def take(written: EncodedSpan) -> bool:
        waiting.append(written)
        return True

    monkeypatch.setattr(traces._recorder, "_sink", take)

    for number in range(1000):
        with span(f"span {number}", parent=PARENT, attributes={"name": "a" * 100, "number": number}):
            pass
    held = [one for one in waiting if one._data is not None]
    await pipeline.close(10)

    assert (len(waiting), len(held)) == (1000, 1000 % 32)
    assert max(len(one._encoded) for one in waiting) < 250


async def test_a_span_that_found_no_room_is_not_encoded() -> None:
    refused: list[EncodedSpan] = []

    def refuse(written: EncodedSpan) -> bool:
        refused.append(written)
        return False

    recorder = SpanRecorder(refuse)

    for _ in range(100):
        recorder.start_span("span", 1, PARENT, remote=True).end()

    assert [one._encoded for one in refused] == [b""] * 100


async def test_recorded_attribute_keeps_its_value_after_a_change() -> None:
    collector = Collector()
    pipeline = exporting_to(collector)
    about = {"n": 1}

    record("told", context=PARENT, parent_span_id=None, started=NOON, ended=NOON, attributes=about)
    about["n"] = 2
    await pipeline.close(10)

    assert [pair.value.int_value for pair in collector.spans()["told"][0].attributes] == [1]


async def test_one_request_has_the_spans_of_instrumented_libraries_as_well() -> None:
    collector = Collector()
    pipeline = exporting_to(collector)

    library = otel.get_tracer_provider().get_tracer("library")
    with span("ours", parent=PARENT) as ours, library.start_as_current_span("theirs"), span("ours again"):
        pass
    await pipeline.close(10)

    found = collector.spans()
    assert isinstance(ours._span, LeanSpan)
    assert len(collector.bodies) == 1
    assert set(found) >= {"ours", "ours again"}
    if "theirs" in found:  # otherwise an earlier test has set the provider of the process
        assert found["theirs"][0].parent_span_id == found["ours"][0].span_id


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "4"),
        ("OTEL_TRACES_SAMPLER", "traceidratio"),
        ("OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED", "true"),
    ],
)
async def test_sampling_and_limits_from_the_environment_use_the_sdk(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)

    pipeline = exporting_to(Collector())

    assert traces._recorder is None
    await pipeline.close(10)


async def test_extra_processor_gets_sdk_spans() -> None:
    pipeline = exporting_to(Collector())
    theirs = InMemorySpanExporter()
    provider: Any = export._own_providers[-1]

    provider.add_span_processor(SimpleSpanProcessor(theirs))
    with span("ours", parent=PARENT):
        pass
    await pipeline.close(10)

    assert [one.name for one in theirs.get_finished_spans()] == ["ours"]


@pytest.mark.parametrize("sampled", [0, 1])
async def test_the_sampling_decision_of_a_caller_is_kept(sampled: int) -> None:
    collector = Collector()
    pipeline = exporting_to(collector)

    with span("ours", parent=TraceContext(TRACE, PARENT.span_id, sampled)) as opened:
        recording = opened.recording
        with span("within"):
            pass
    await pipeline.close(10)

    assert recording is bool(sampled)
    assert len(collector.spans()) == 2 * sampled


async def test_rejected_spans_are_counted() -> None:
    collector = Collector()
    collector.there = False

    with exposing() as figures:
        pipeline = exporting_to(collector)
        for _ in range(3):
            with span("ours", parent=PARENT):
                pass
        await pipeline.close(10)
        lost = samples(figures)["pointsman_telemetry_dropped_total"]

    assert lost == [({"pointsman_signal": "spans"}, 3)]
    assert pipeline.undelivered() == 3


async def test_oversized_request_is_lost_without_an_outage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pointsman.telemetry.fast.otlp_exporter._MAX_REQUEST_BYTES", 100)
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1")
    collector = Collector()
    pipeline = exporting_to(collector)

    for _ in range(3):
        with span("ours" * 50, parent=PARENT):
            pass
    await pipeline.close(10)

    assert (collector.bodies, pipeline.undelivered()) == ([], 3)
