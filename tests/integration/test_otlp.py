"""An independent collector receives the telemetry. With a faulty collector, processes still end in time."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from support.otlp import OtlpCollector, orphans, parse
from support.servers import close_server

_EXITING = """
import asyncio, sys, time
from pointsman import telemetry
from pointsman.settings import Settings

async def main():
    t = telemetry.setup("exiting", settings=Settings())
    for _ in range(3000):
        with telemetry.span("work"):
            telemetry.metrics.count(telemetry.semconv.RETRIES)
    begun = time.monotonic()
    await t.shutdown(timeout=float(sys.argv[1]))
    print(time.monotonic() - begun, time.time())

asyncio.run(main())
"""


@pytest.mark.parametrize("manner", ["refuses", "hangs", "is overloaded"])
async def test_process_ends_in_time_and_reports_lost_spans(manner: str) -> None:
    async with _collector(manner) as (endpoint, _):
        (printed,), lines = await _run(_EXITING, {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}, "1.0")
        took, shut_down_at = map(float, printed.split())
        lingered = time.time() - shut_down_at

    assert took < 4  # the limit of 1 s, and 3 s for a busy machine; the default limit is 4 s
    assert lingered < 5  # no thread of the exporter delays the end of the interpreter
    (lost,) = [line for line in lines if line["event"] == "spans_lost"]
    assert lost["count"] == 3000
    assert len(lines) < 20  # a repeatedly failing exporter does not fill the log


@pytest.mark.parametrize("manner", ["refuses", "hangs", "is overloaded"])
async def test_no_span_is_created_behind_a_full_queue(
    manner: str,
) -> None:
    code = """
import asyncio, time
from pointsman import telemetry
from pointsman.settings import Settings

async def main():
    t = telemetry.setup("busy", settings=Settings())
    parent = telemetry.parse_traceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    began, made, recording = time.monotonic(), 0, True
    while recording:
        with telemetry.span("work", parent=parent) as span:
            recording = span.recording
        made += recording
        await asyncio.sleep(0.001)
    print(time.monotonic() - began, made)
    await t.shutdown(0.5)

asyncio.run(main())
"""
    room = {"OTEL_BSP_MAX_QUEUE_SIZE": "64", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "64", "OTEL_METRICS_EXPORTER": "none"}
    async with _collector(manner) as (endpoint, _):
        (printed,), lines = await _run(code, {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, **room})
        took, made = map(float, printed.split())

    assert 2 <= took < 8  # less than the 10 s of the first export
    (lost,) = [line for line in lines if line["event"] == "spans_lost"]
    assert lost["count"] == made + 1


async def test_spans_and_metrics_are_flushed_before_a_process_ends() -> None:
    async with _collector("works") as (endpoint, paths):
        # The queue has room for all spans, because the test is about the flush and not about overload.
        _, lines = await _run(
            _EXITING, {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_BSP_MAX_QUEUE_SIZE": "5000"}, "20"
        )

    assert paths == {b"/v1/traces", b"/v1/metrics"}
    assert lines == []


async def test_log_lines_are_sent_too_where_that_is_asked_for_by_name() -> None:
    code = """
import asyncio
from pointsman import telemetry
from pointsman.settings import Settings

async def main():
    t = telemetry.setup("telling", settings=Settings())
    with telemetry.span("work"):
        telemetry.get_logger("pointsman.x").error("it_failed", count=2)
    await t.shutdown()

asyncio.run(main())
"""
    async with _collector("works") as (endpoint, paths):
        _, lines = await _run(code, {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_LOGS_EXPORTER": "otlp"})

    assert paths == {b"/v1/traces", b"/v1/metrics", b"/v1/logs"} or paths == {b"/v1/traces", b"/v1/logs"}
    assert [line["event"] for line in lines] == ["it_failed"]


async def test_undelivered_spans_are_reported_at_exit() -> None:
    async with OtlpCollector() as collector:
        with pytest.raises(AssertionError, match="has 0 spans"):
            await collector.spans(timeout=0.1)


async def test_a_process_without_telemetry_loads_no_sdk() -> None:
    code = """
import sys
from pointsman import telemetry
from pointsman.settings import Settings
telemetry.setup("quiet", settings=Settings())
with telemetry.span("work"):
    telemetry.metrics.count(telemetry.semconv.RETRIES)
heavy = ("opentelemetry.sdk", "opentelemetry.exporter")
print(telemetry.tracing_enabled(), [name for name in sys.modules if name.startswith(heavy)])
"""

    output, _ = await _run(code, {})

    assert output == ["False []"]


async def test_an_exporter_that_does_not_exist_is_said_and_stops_nothing() -> None:
    code = """
from pointsman import telemetry
from pointsman.settings import Settings
telemetry.setup("quiet", settings=Settings())
print(telemetry.tracing_enabled())
"""

    output, lines = await _run(code, {"OTEL_TRACES_EXPORTER": "zipkin"})

    assert output == ["False"]
    assert [(line["event"], line["seen"]) for line in lines] == [("telemetry_exporter_unknown", "zipkin")]


def test_the_parser_is_not_fooled_by_values_that_look_like_structure() -> None:
    text = (
        "ResourceSpans #0\nResource SchemaURL: \nResource attributes:\n"
        "     -> service.name: Str(svc\none)\nScopeSpans #0\nScopeSpans SchemaURL: \nInstrumentationScope x 1.2\n"
        "Span #0\n    Trace ID       : e1b86f813fa24cad27621b6e43a44e80\n    Parent ID      : \n"
        "    ID             : c4fea36dd9ff235b\n    Name           : parent\nSpan #0 evil\n"
        "    Kind           : SPAN_KIND_INTERNAL\nStart time: 1\nEnd time: 2\n"
        "    Status code    : STATUS_CODE_ERROR\n    Status message : two\nlines\nAttributes:\n     -> a: Int(1)\n"
        "     -> b: Str(x\n    Name : forged\nEvents:\n)\n     -> c: Bool(true)\n     -> d: Double(1.5)\n"
        "     -> e: Str(-> g: Str(h))\nEvents:\nSpanEvent #0\n     -> Name: ev\n     -> Timestamp: 1\n"
        "     -> DroppedAttributesCount: 0\n     -> Attributes::\n          -> k: Str(v)\n"
        "Span #1\n    Trace ID       : e1b86f813fa24cad27621b6e43a44e80\n    Parent ID      : c4fea36dd9ff235b\n"
        "    ID             : 5e04a115a7359fca\n    Name           : child\n    Kind           : SPAN_KIND_CLIENT\n"
        "Start time: 1\nEnd time: 2\n    Status code    : STATUS_CODE_UNSET\n    Status message : \nLinks:\n"
        "SpanLink #0\n     -> Trace ID: e1b86f813fa24cad27621b6e43a44e80\n     -> ID: c4fea36dd9ff235b\n"
        "     -> TraceState: \n     -> DroppedAttributesCount: 0\n"
    )

    parent, child = parse(text)

    assert (parent.service, parent.name, parent.parent_id) == ("svc\none", "parent\nSpan #0 evil", None)
    assert (parent.status, parent.status_message) == ("error", "two\nlines")
    assert parent.attributes == {
        "a": 1,
        "b": "x\n    Name : forged\nEvents:\n",
        "c": True,
        "d": 1.5,
        "e": "-> g: Str(h)",
    }
    assert parent.events == ("ev",)
    assert (child.name, child.parent_id, child.status_message) == ("child", parent.span_id, "")
    assert child.links == ((parent.trace_id, parent.span_id),)
    assert orphans([child]) == [child]


async def _run(code: str, environment: dict[str, str], *arguments: str) -> tuple[list[str], list[dict[str, object]]]:
    """Run a program. Return the lines on standard output, and the log."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("OTEL_", "POINTSMAN_"))}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "error", "-c", code, *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**inherited, **environment},
    )
    try:
        output, errors = await asyncio.wait_for(process.communicate(), 30)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, errors.decode()
    return output.decode().splitlines(), [json.loads(line) for line in errors.decode().splitlines()]


@asynccontextmanager
async def _collector(manner: str) -> AsyncIterator[tuple[str, set[bytes]]]:
    """Serve an endpoint and record the posted paths."""
    paths: set[bytes] = set()
    handlers: set[asyncio.Task[None]] = set()
    status = b"200 OK" if manner == "works" else b"503 Service Unavailable"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        handlers.add(task)
        task.add_done_callback(handlers.discard)
        try:
            while manner == "hangs":
                if not await reader.read(65536):
                    return
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(line for line in head.lower().splitlines() if line.startswith(b"content-length:"))
            await reader.readexactly(int(length.split(b":")[1]))
            paths.add(head.split()[1])
            writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass  # the process has ended
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    if manner == "refuses":
        server.close()
        await server.wait_closed()
    try:
        yield f"http://127.0.0.1:{port}", paths
    finally:
        await close_server(server, handlers)
