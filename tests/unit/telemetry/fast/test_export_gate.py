"""While an exporter fails, items are not queued or encoded but counted, and its recovery is detected."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from opentelemetry import context as otel_context
from opentelemetry.sdk.trace.export import SpanExportResult
from structlog.testing import capture_logs
from support.prometheus import exposing, samples

from pointsman.settings import Settings
from pointsman.telemetry import logs, traces
from pointsman.telemetry.export import _build_traces, _SinkGroup
from pointsman.telemetry.fast.export_gate import ExportGate
from pointsman.telemetry.traces import TraceContext

PARENT = TraceContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", 1)
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
NOT_SAMPLED = TraceContext(PARENT.trace_id, PARENT.span_id, 0)


class Exporter:
    """An exporter that accepts batches only while `works`, and records the size of each batch."""

    left_out = 0  # rejected items of an accepted batch

    def __init__(self) -> None:
        self.works = False
        self.asked: list[int] = []

    def export(self, batch: Sequence[Any]) -> SpanExportResult:
        self.asked.append(len(batch))
        return SpanExportResult.SUCCESS if self.works else SpanExportResult.FAILURE

    def shutdown(self) -> None: ...


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Place:
    """An export gate with room for 100 items, its exporter and its clock."""

    def __init__(self) -> None:
        self.exporter = Exporter()
        self.clock = Clock()
        self.gate = ExportGate("spans", self.exporter, 100, monotonic=self.clock)

    def enter(self, amount: int) -> int:
        """Offer spans to the gate. Return the number of admitted spans."""
        return sum(self.gate.try_enter() for _ in range(amount))

    def fail(self) -> None:
        self.gate.export(range(self.enter(10)))


@pytest.fixture
def place() -> Place:
    return Place()


@pytest.fixture
def logged() -> Iterator[list[Any]]:
    with capture_logs() as lines:
        yield lines


def test_after_a_failure_nothing_is_let_in_and_everything_counts(place: Place) -> None:
    place.fail()

    assert (place.gate.is_open(), place.enter(50)) == (False, 0)
    assert place.gate.lost == 60


def test_waiting_spans_are_dropped_unencoded_when_the_collector_fails(place: Place) -> None:
    place.enter(30)
    place.fail()

    place.gate.export(range(30))

    assert place.exporter.asked == [10]
    assert place.gate.lost == 40


def test_one_export_at_intervals_probes_the_collector(place: Place) -> None:
    place.fail()
    place.clock.now += 5
    let_in = place.enter(50)
    place.gate.export(range(1))

    assert let_in == 1
    assert place.exporter.asked == [10, 1]
    assert place.enter(50) == 0
    place.clock.now += 5
    assert place.enter(50) == 1


def test_only_one_item_is_admitted_while_the_collector_is_probed(place: Place) -> None:
    inside: list[int] = []
    place.fail()
    place.clock.now += 5
    place.exporter.export = lambda batch: inside.append(place.enter(50)) or SpanExportResult.FAILURE  # type: ignore[method-assign,func-returns-value]
    place.enter(1)

    place.gate.export(range(1))

    assert inside == [1]


def test_first_success_reopens_the_gate(place: Place) -> None:
    place.fail()
    place.clock.now += 5
    place.exporter.works = True
    place.gate.export(range(place.enter(1)))

    assert place.enter(150) == 100


def test_outage_and_recovery_are_logged_once_with_the_losses(place: Place, logged: list[Any]) -> None:
    place.fail()
    for _ in range(20):
        place.clock.now += 5
        place.enter(3)
        place.gate.export(range(1))
    place.clock.now += 5
    place.exporter.works = True
    place.gate.export(range(place.enter(1)))

    assert [(line["event"], line.get("lost")) for line in logged] == [
        ("telemetry_collector_down", None),
        ("telemetry_collector_up", 70),
    ]


def test_loss_before_a_delivery_is_reported_once(place: Place, logged: list[Any]) -> None:
    for _ in range(2):
        place.exporter.works = False
        place.fail()
        place.clock.now += 5
        place.exporter.works = True
        place.gate.export(range(place.enter(1)))

    assert [line["lost"] for line in logged if line["event"] == "telemetry_collector_up"] == [10, 10]


def test_a_full_queue_is_no_sign_that_the_collector_is_away(place: Place) -> None:
    place.enter(100)

    assert (place.gate.is_open(), place.gate.collector_down()) == (False, False)


def test_full_queue_behind_a_stuck_export_counts_as_an_outage(place: Place) -> None:
    away: list[bool] = []

    def hang(batch: object) -> SpanExportResult:
        place.enter(100)
        for passed in (1.9, 0.2):
            place.clock.now += passed
            away.append(place.gate.collector_down())
        return SpanExportResult.SUCCESS

    place.exporter.export = hang  # type: ignore[method-assign]
    place.gate.export(range(place.enter(10)))

    assert away == [False, True]
    assert not place.gate.collector_down()  # the export succeeded, so waiting exports may start


def test_slow_export_does_not_block_a_queue_with_room(place: Place) -> None:
    seen: list[tuple[bool, int]] = []

    def hang(batch: object) -> SpanExportResult:
        place.clock.now += 60
        seen.append((place.gate.collector_down(), place.enter(100)))
        return SpanExportResult.SUCCESS

    place.exporter.export = hang  # type: ignore[method-assign]
    place.gate.export(range(place.enter(10)))

    assert seen == [(False, 100)]
    assert place.gate.lost == 100  # further items wait and are not lost


def test_partly_dropped_batch_counts_the_rest_as_delivered(place: Place) -> None:
    place.exporter.works = True
    place.exporter.left_out = 3

    place.gate.export(range(place.enter(10)))

    assert (place.gate.lost, place.enter(10)) == (3, 10)


def test_fully_dropped_batch_proves_that_the_collector_is_back(place: Place) -> None:
    place.fail()
    place.clock.now += 5
    place.exporter.works = True
    place.exporter.left_out = 1
    place.gate.export(range(place.enter(1)))

    assert (place.gate.lost, place.enter(50)) == (11, 50)


def test_only_one_export_passes_during_a_probe(place: Place) -> None:
    place.fail()
    away = [place.gate.collector_down()]
    place.clock.now += 5
    away.append(place.gate.collector_down())
    place.enter(1)
    away.append(place.gate.collector_down())

    assert away == [True, False, True]


def test_an_unsent_batch_does_not_change_the_state_of_the_collector(place: Place) -> None:
    def never(batch: object) -> SpanExportResult:
        raise ValueError("it cannot be encoded")

    place.exporter.export = never  # type: ignore[method-assign]
    for _ in range(3):
        with pytest.raises(ValueError, match="encoded"):
            place.gate.export(range(place.enter(10)))

    assert (place.gate.lost, place.enter(10)) == (30, 10)


def test_value_error_of_an_http_client_is_the_collectors(place: Place) -> None:
    class Refused(OSError, ValueError): ...

    def refuse(batch: object) -> SpanExportResult:
        raise Refused

    place.exporter.export = refuse  # type: ignore[method-assign]
    with pytest.raises(Refused):
        place.gate.export(range(place.enter(10)))

    assert (place.gate.lost, place.enter(10)) == (10, 0)


class TestSpans:
    """No span is created for an unavailable collector."""

    @pytest.fixture
    def exporter(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Exporter]:
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "60000")
        exporter = Exporter()
        with exposing() as figures:
            self.figures = figures
            self.pipeline = _build_traces([exporter], "x", "")
            yield exporter
            self.pipeline._flush()
        traces.configure(None)

    def test_one_collector_of_two_that_is_there_gets_all(self) -> None:
        away, there = ExportGate("spans", Exporter(), 10), ExportGate("spans", Exporter(), 10)
        away._has_failed, away._retried_at = True, float("inf")

        seen = [(ways.is_open(), ways.collector_down()) for ways in (_SinkGroup([away]), _SinkGroup([away, there]))]

        assert seen == [(False, True), (True, False)]

    def go_away(self) -> None:
        gate = cast(ExportGate, traces._sink)
        gate._has_failed, gate._retried_at = True, float("inf")

    def lost(self) -> float:
        return sum(value for _, value in samples(self.figures).get("pointsman_telemetry_dropped_total", ()))

    def test_child_of_a_dropped_span_joins_its_grandparent_and_the_drop_counts(self, exporter: Exporter) -> None:
        self.go_away()

        with traces.span("outer", parent=PARENT) as outer, traces.span("inner") as inner:
            seen = (outer.context, inner.context, inner.recording)

        assert seen == (TraceContext(PARENT.trace_id, PARENT.span_id, 1), outer.context, False)
        assert (self.lost(), self.pipeline.undelivered()) == (2, 2)

    def test_a_span_that_another_process_ends_is_not_lost(self, exporter: Exporter) -> None:
        self.go_away()

        with traces.span("left", parent=PARENT) as left:
            left.discard()

        assert self.lost() == 0

    def test_an_unsampled_span_does_not_count_as_lost(self, exporter: Exporter) -> None:
        self.go_away()

        with traces.span("unsampled", parent=NOT_SAMPLED):
            pass

        assert self.lost() == 0

    def test_a_recorded_span_counts_as_lost(self, exporter: Exporter) -> None:
        self.go_away()

        traces.record(
            "task", context=traces.reserve_context(PARENT), parent_span_id=PARENT.span_id, started=NOON, ended=NOON
        )

        assert (self.lost(), exporter.asked) == (1, [])

    def test_span_begun_in_a_full_queue_is_kept_if_room_is_found(
        self, exporter: Exporter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        gate = cast(ExportGate, traces._sink)
        monkeypatch.setattr(gate, "capacity", 1)

        with traces.span("fills it", parent=PARENT):
            pass
        with traces.span("long", parent=PARENT):
            exporter.works = True
            traces._tracer.span_processor.force_flush()  # type: ignore[union-attr]
        self.pipeline._flush()

        assert (self.lost(), exporter.asked) == (0, [1, 1])

    def test_span_begun_behind_a_stuck_export_counts_as_lost(
        self, exporter: Exporter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        gate = cast(ExportGate, traces._sink)
        clock = Clock()
        monkeypatch.setattr(gate, "_monotonic", clock)
        monkeypatch.setattr(gate, "capacity", 1)
        recording: list[bool] = []

        def hang(batch: Sequence[Any]) -> SpanExportResult:
            for name in () if recording else ("waits", "is not made"):
                with traces.span(name, parent=PARENT) as opened:
                    recording.append(opened.recording)
                clock.now += 3
            return SpanExportResult.SUCCESS

        monkeypatch.setattr(exporter, "export", hang)
        with traces.span("is sent", parent=PARENT):
            pass
        traces._tracer.span_processor.force_flush()  # type: ignore[union-attr]

        assert recording == [True, False]
        assert (self.lost(), self.pipeline.undelivered()) == (1, 1)

    def test_libraries_create_no_span_below_a_dropped_one(self, exporter: Exporter) -> None:
        self.go_away()

        with traces.span("chat", parent=PARENT, alone=True):
            suppressed = [otel_context.get_value(key) for key in traces._SUPPRESSION_KEYS]

        assert suppressed == [True, True]


def test_log_line_of_the_gate_passes_the_gate(place: Place) -> None:
    logs.configure(Settings())
    came: list[tuple[str, bool]] = []
    logs.send_to(lambda line: came.append((line.event, place.gate.try_enter())))
    try:
        place.fail()
        place.clock.now += 5
        place.exporter.works = True
        place.gate.export(range(place.enter(1)))
    finally:
        logs.send_to(None)

    assert came == [("telemetry_collector_down", False), ("telemetry_collector_up", True)]
    assert place.gate.lost == 10 + 1 + 1  # a batch, the first log line, and the waiting second line
