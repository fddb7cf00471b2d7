"""Spans belong to the correct context and are exported with the correct fields."""

from __future__ import annotations

import asyncio
import gc
import logging
import multiprocessing
from collections.abc import AsyncGenerator, AsyncIterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import aclosing

import pytest
from opentelemetry import trace as otel
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from support.spans import NOON, REMOTE, SPAN, TRACE, ids

from pointsman.errors import ModelError
from pointsman.telemetry import active_span, traces
from pointsman.telemetry.fast.lean_spans import EncodedSpan, SpanRecorder
from pointsman.telemetry.traces import (
    SpanEvent,
    TraceContext,
    TracedCall,
    current_context,
    parse_traceparent,
    record,
    reserve_context,
    span,
)
from pointsman.util.threads import run_in_thread


@pytest.fixture
def no_tracing() -> None:
    traces.configure(None)


async def streaming(name: str, waits: asyncio.Event | None = None) -> AsyncGenerator[int]:
    """Yield numbers within a span. With `waits`, block before the second number."""
    with span(name):
        yield 1
        if waits is not None:
            waits.set()
            await asyncio.Event().wait()
        yield 2


class TestSpan:
    def test_spans_nest_and_a_given_parent_wins(self, exported: InMemorySpanExporter) -> None:
        with span("outer", kind="consumer", parent=TraceContext(TRACE, SPAN, 1, "a=1")) as outer:
            with span("inner", kind="client", attributes={"n": 1, "none": None}) as inner:
                inner.set_attributes({"gen_ai.x": "y"}, more=None)
            inside = current_context()
        assert current_context() is None

        first, second = exported.get_finished_spans()
        assert outer.context is not None
        assert outer.context == inside
        assert outer.context.tracestate == "a=1"
        assert ids(second) == (TRACE, outer.context.span_id, SPAN)
        assert ids(first)[2] == outer.context.span_id
        assert (first.kind, second.kind) == (SpanKind.CLIENT, SpanKind.CONSUMER)
        assert dict(first.attributes or {}) == {"n": 1, "gen_ai.x": "y"}

    def test_an_exception_is_recorded_without_the_secrets_in_it_and_passes_on(
        self, exported: InMemorySpanExporter
    ) -> None:
        with pytest.raises(ModelError), span("work"):
            raise ModelError("the key sk-abcdefghijklmnop was refused", retryable=False)

        (finished,) = exported.get_finished_spans()
        assert finished.status.status_code is StatusCode.ERROR
        assert dict(finished.attributes or {}) == {"error.type": "provider_error"}
        assert [event.name for event in finished.events] == ["exception"]
        assert "sk-abcdef" not in finished.to_json()

    def test_truncated_traceback_hides_its_literals_too(
        self, exported: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(active_span, "_MAX_STACK_CHARS", 30)

        with pytest.raises(ValueError), span("s"):  # noqa: PT011  # what it says is what is cut
            raise ValueError(f"password={'hunter2' * 10}")

        (finished,) = exported.get_finished_spans()
        assert "hunter2" not in str(finished.events[0].attributes)

    def test_an_exception_that_is_not_ours_is_named_by_its_class(self, exported: InMemorySpanExporter) -> None:
        with pytest.raises(ZeroDivisionError), span("work"):
            _ = 1 / 0

        assert (exported.get_finished_spans()[0].attributes or {})["error.type"] == "ZeroDivisionError"

    def test_the_first_failure_is_the_one_that_counts(self, exported: InMemorySpanExporter) -> None:
        def work() -> None:
            with span("work") as opened:
                opened.set_failed("first", "what came first")
                raise ValueError("second")

        with pytest.raises(ValueError, match="second"):
            work()

        (finished,) = exported.get_finished_spans()
        assert (finished.attributes or {})["error.type"] == "first"
        assert finished.status.description == "what came first"

    async def test_cancelled_work_is_an_error_of_that_type(self, exported: InMemorySpanExporter) -> None:
        started = asyncio.Event()

        async def work() -> None:
            with span("work"):
                started.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await started.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

        (finished,) = exported.get_finished_spans()
        assert (finished.attributes or {})["error.type"] == "cancelled"

    def test_unsampled_span_is_propagated_and_not_exported(self, exported: InMemorySpanExporter) -> None:
        with span("work", parent=TraceContext(TRACE, SPAN, 0)) as opened:
            assert not opened.recording
            assert opened.context is not None
            assert (opened.context.trace_id, opened.context.sampled) == (TRACE, False)

        assert exported.get_finished_spans() == ()

    async def test_tasks_started_in_a_span_are_its_children(self, exported: InMemorySpanExporter) -> None:
        async def child(n: int) -> None:
            with span(f"child {n}"):
                await asyncio.sleep(0)

        with span("parent") as parent:
            await asyncio.gather(*(child(n) for n in range(10)))

        assert parent.context is not None
        assert [ids(child)[2] for child in exported.get_finished_spans()[:-1]] == [parent.context.span_id] * 10

    async def test_a_thread_carries_the_span_with_it(self, exported: InMemorySpanExporter) -> None:
        def tool(a: int, *, b: int) -> int:
            with span("tool"):
                return a + b

        with span("parent") as parent:
            total = await run_in_thread(tool, 1, b=2)

        assert total == 3
        assert parent.context is not None
        assert ids(exported.get_finished_spans()[0])[2] == parent.context.span_id

    async def test_abandoned_generator_restores_the_context_without_a_log(
        self, exported: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
    ) -> None:
        ended = asyncio.Event()

        async def stream() -> AsyncIterator[int]:
            try:
                with span("stream"):
                    yield 1
                    yield 2
            finally:
                ended.set()

        async def consume() -> None:
            async for _ in stream():
                break

        with caplog.at_level(logging.DEBUG):
            with span("outer") as outer:
                await asyncio.create_task(consume())
                gc.collect()
                await asyncio.wait_for(ended.wait(), 5)
                assert current_context() == outer.context
            assert current_context() is None

        assert [finished.name for finished in exported.get_finished_spans()] == ["stream", "outer"]
        assert [entry.getMessage() for entry in caplog.records if entry.name.startswith("opentelemetry")] == []

    async def test_generators_ending_out_of_order_restore_the_context(self, exported: InMemorySpanExporter) -> None:
        with span("outer") as outer:
            first, second, third = (streaming(name) for name in ("first", "second", "third"))
            for stream in (first, second, third):
                await anext(stream)
            await first.aclose()
            await second.aclose()
            await third.aclose()
            assert current_context() == outer.context
            with span("after"):
                pass
        assert current_context() is None

        finished = exported.get_finished_spans()
        assert [each.name for each in finished] == ["first", "second", "third", "after", "outer"]
        assert outer.context is not None
        assert ids(finished[3])[2] == outer.context.span_id

    async def test_cancelled_interleaved_generators_keep_parents_right(self, exported: InMemorySpanExporter) -> None:
        waiting = asyncio.Event()

        async def both() -> None:
            async with aclosing(streaming("first")) as first, aclosing(streaming("second", waiting)) as second:
                await anext(first)
                await anext(second)
                await first.aclose()
                await anext(second)

        async def work() -> None:
            with span("work"):
                try:
                    await both()
                finally:
                    with span("undone"):
                        pass

        task = asyncio.create_task(work())
        await waiting.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

        finished = {each.name: each for each in exported.get_finished_spans()}
        assert set(finished) == {"first", "second", "work", "undone"}
        assert ids(finished["undone"])[2] == ids(finished["work"])[1]
        cancelled = {name for name, each in finished.items() if (each.attributes or {}).get("error.type")}
        assert cancelled == {"second", "work"}

    async def test_tasks_that_each_read_a_generator_are_not_in_each_others_spans(
        self, exported: InMemorySpanExporter
    ) -> None:
        async def read(name: str) -> None:
            async for _ in streaming(name):
                with span(f"{name} read"):
                    await asyncio.sleep(0)

        with span("outer") as outer:
            await asyncio.gather(read("first"), read("second"))

        finished = exported.get_finished_spans()
        (trace_id,) = {ids(each)[0] for each in finished}
        begun = {each.name: ids(each)[1] for each in finished}
        above = {(each.name, ids(each)[2]) for each in finished}
        assert outer.context is not None
        assert outer.context.trace_id == trace_id
        assert above == {
            ("outer", None), ("first", begun["outer"]), ("second", begun["outer"]),
            ("first read", begun["first"]), ("second read", begun["second"]),
        }  # fmt: skip

    def test_a_process_of_a_pool_continues_with_the_trace(self, exported: InMemorySpanExporter) -> None:
        spawning = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, spawning) as pool, span("work") as opened:
            there = pool.submit(TracedCall(current_context)).result(30)
            after = pool.submit(current_context).result(30)

        assert (there, after) == (opened.context, None)

    def test_abandoned_reservation_is_exported_once_under_its_id(self, exported: InMemorySpanExporter) -> None:
        with span("work", parent=REMOTE, span_id=SPAN[::-1]) as opened:
            opened.discard()
        with span("work", parent=REMOTE, span_id=SPAN[::-1], links=(REMOTE,)) as opened:
            opened.add_event("again", {"n": 2})

        (finished,) = exported.get_finished_spans()
        assert ids(finished) == (TRACE, SPAN[::-1], SPAN)
        assert [event.name for event in finished.events] == ["again"]
        assert [link.context.span_id for link in finished.links] == [int(SPAN, 16)]

    def test_spans_of_other_instrumentation_join_ours(self, exported: InMemorySpanExporter) -> None:
        with span("ours") as ours:
            foreign = otel.get_current_span().get_span_context()

        assert ours.context is not None
        assert f"{foreign.span_id:016x}" == ours.context.span_id


@pytest.mark.usefixtures("no_tracing")
class TestOff:
    def test_the_context_that_came_in_continues(self) -> None:
        with span("work", parent=REMOTE) as outer, span("deeper") as inner:
            inner.set_attributes(a=1)
            assert (outer.context, inner.context, current_context()) == (REMOTE, REMOTE, REMOTE)
        assert current_context() is None

    def test_without_a_context_there_is_none(self) -> None:
        with span("work") as opened:
            assert opened.context is None
            assert current_context() is None

    def test_reserved_context_is_its_own_parent(self) -> None:
        assert reserve_context(REMOTE) is REMOTE

    def test_a_new_trace_is_not_sampled(self) -> None:
        fresh = reserve_context()

        assert parse_traceparent(fresh.traceparent) == fresh
        assert not fresh.sampled

    def test_context_reserved_while_off_is_not_recorded_later(self, exported: InMemorySpanExporter) -> None:
        record("workflow", context=REMOTE, parent_span_id=SPAN, started=NOON, ended=NOON)

        assert exported.get_finished_spans() == ()


def test_unencodable_text_is_sent_escaped(exported: InMemorySpanExporter) -> None:
    """An exception with a file name in another encoding must not cause the loss of 511 other spans of the batch."""
    odd = {"k\ud800": "\ud800", "many": ["\ud800"]}
    with span("n\ud800", attributes=odd) as opened:
        opened.add_event("e\ud800", odd)
        opened.set_attributes({"set": "\ud800"})
        opened.set_failed("t\ud800", "no \udce9")
    happening = SpanEvent("e\ud800", NOON, odd)
    record(
        "n\ud800", context=REMOTE, parent_span_id=None, started=NOON, ended=NOON, attributes=odd,
        error=("t\ud800", "no \udce9"), happenings=[happening],
    )  # fmt: skip

    sent = encode_spans(exported.get_finished_spans()).resource_spans[0].scope_spans[0].spans

    assert len(sent) == 2
    for told in sent:
        said = {each.key: each.value for each in told.attributes}
        assert (told.name, told.status.message, told.events[0].name) == ("n\\ud800", "no \\udce9", "e\\ud800")
        assert said["k\\ud800"].string_value == "\\ud800"
        assert said["many"].array_value.values[0].string_value == "\\ud800"
        assert said["error.type"].string_value == "t\\ud800"
        assert told.events[0].attributes[0].value.string_value == "\\ud800"
    assert {each.key: each.value.string_value for each in sent[0].attributes}["set"] == "\\ud800"


class Ending:
    """A sink that another thread stops during a call."""

    def __init__(self, *, there: bool) -> None:
        self._there = there

    def is_open(self) -> bool:
        traces.configure(None)
        return self._there

    def collector_down(self) -> bool:
        traces.configure(None)
        return not self._there

    def reject(self) -> None: ...


@pytest.mark.parametrize("there", [True, False])
def test_span_survives_a_shutdown_in_another_thread(there: bool) -> None:
    taken: list[EncodedSpan] = []

    def take(written: EncodedSpan) -> bool:
        taken.append(written)
        return True

    def begin() -> None:
        recorder = SpanRecorder(take)
        traces.configure(TracerProvider(shutdown_on_exit=False), sink=Ending(there=there), recorder=recorder)

    begin()
    with span("work", parent=REMOTE):
        pass
    begin()
    record("work", context=REMOTE, parent_span_id=None, started=NOON, ended=NOON)

    assert len(taken) == 2 * there
