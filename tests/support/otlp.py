"""Run `rotel`, an independent OTLP collector, and parse spans from its debug output.

async with OtlpCollector() as collector:
    ... run processes with OTEL_EXPORTER_OTLP_ENDPOINT=collector.endpoint ...
    spans = await collector.spans(until=lambda spans: len(spans) >= 3, timeout=10)
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from support.cluster import free_ports

__all__ = ["OtlpCollector", "ReceivedSpan", "orphans", "parse", "roots"]

_QUIET = 0.05  # seconds without output after which a batch is complete; rotel writes one batch at a time
_START = 10.0  # seconds; rotel starts in 0.5 on an idle machine
_RESOURCE = re.compile(r"^ResourceSpans #\d+\nResource SchemaURL:.*\n", re.MULTILINE)
_SPAN = re.compile(
    r"^Span #\d+\n"
    r"    Trace ID       : (?P<trace>[0-9a-f]{32})\n"
    r"    Parent ID      : (?P<parent>[0-9a-f]{16})?[ ]*\n"
    r"    ID             : (?P<id>[0-9a-f]{16})\n"
    r"    Name           : (?P<name>(?s:.*?))\n"
    r"    Kind           : SPAN_KIND_(?P<kind>[A-Z]+)\n"
    r"Start time: (?P<start>\d+)\n"
    r"End time: (?P<end>\d+)\n"
    r"    Status code    : STATUS_CODE_(?P<status>[A-Z]+)\n"
    r"    Status message :[ ]?(?P<message>(?s:.*?))(?=\n(?:Attributes|Events|Links):\n|\nSpan #|\nScopeSpans #|\n*\Z)",
    re.MULTILINE,
)
_SECTION = re.compile(r"^(Attributes|Events|Links):\n(?=     -> |Span(?:Event|Link) #\d+\n)", re.MULTILINE)
_ATTRIBUTE = re.compile(
    r"^     -> (?P<key>[^\n:]+): (?P<type>[A-Z]\w*)\((?P<value>(?s:.*?))\)(?=\n     -> |\n?\Z|\nScopeSpans #)",
    re.MULTILINE,
)
_EVENT = re.compile(r"^SpanEvent #\d+\n     -> Name: (.*)$", re.MULTILINE)
_LINK = re.compile(r"^SpanLink #\d+\n     -> Trace ID: ([0-9a-f]{32})\n     -> ID: ([0-9a-f]{16})$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ReceivedSpan:
    """A span that the collector received. `kind` and `status` are lower-case; times are nanoseconds since 1970."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str | None
    kind: str
    status: str
    status_message: str
    start: int
    end: int
    attributes: dict[str, object] = field(default_factory=dict)
    resource: dict[str, object] = field(default_factory=dict)
    events: tuple[str, ...] = ()
    links: tuple[tuple[str, str], ...] = ()


def roots(spans: Iterable[ReceivedSpan]) -> list[ReceivedSpan]:
    """Return the spans without a parent."""
    return [span for span in spans if span.parent_id is None]


def orphans(spans: Sequence[ReceivedSpan]) -> list[ReceivedSpan]:
    """Return the spans whose parent is missing."""
    known = {(span.trace_id, span.span_id) for span in spans}
    return [span for span in spans if span.parent_id is not None and (span.trace_id, span.parent_id) not in known]


def parse(text: str) -> list[ReceivedSpan]:
    """Return the spans in rotel's detailed debug output.

    A value may contain line breaks, so a line counts as structure only between other lines of structure.
    """
    spans: list[ReceivedSpan] = []
    for block in _RESOURCE.split(text)[1:]:
        found = list(_SPAN.finditer(block))
        resource = _attributes(block[: found[0].start()] if found else block)
        for match, following in zip(found, [*found[1:], None], strict=True):
            details = block[match.end() : following.start() if following else len(block)]
            sections = _sections(details)
            spans.append(
                ReceivedSpan(
                    service=str(resource.get("service.name", "")),
                    name=match["name"],
                    trace_id=match["trace"],
                    span_id=match["id"],
                    parent_id=match["parent"],
                    kind=match["kind"].lower(),
                    status=match["status"].lower(),
                    status_message=match["message"],
                    start=int(match["start"]),
                    end=int(match["end"]),
                    attributes=_attributes(sections.get("Attributes", "")),
                    resource=resource,
                    events=tuple(_EVENT.findall(sections.get("Events", ""))),
                    links=tuple(_LINK.findall(sections.get("Links", ""))),
                )
            )
    return spans


def _sections(details: str) -> dict[str, str]:
    found = list(_SECTION.finditer(details))
    ends = [match.start() for match in found[1:]] + [len(details)]
    return {match[1]: details[match.end() : end] for match, end in zip(found, ends, strict=True)}


def _attributes(text: str) -> dict[str, object]:
    return {match["key"]: _value(match["type"], match["value"]) for match in _ATTRIBUTE.finditer(text)}


def _value(kind: str, text: str) -> object:
    match kind:
        case "Int":
            return int(text)
        case "Double":
            return float(text)
        case "Bool":
            return text == "true"
        case _:
            return text


class OtlpCollector:
    """A running collector on free ports of the loopback interface. Its process ends with the block."""

    def __init__(self) -> None:
        self.endpoint = ""
        """The value for OTEL_EXPORTER_OTLP_ENDPOINT, over HTTP."""
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._output = bytearray()

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of a process that exports to this collector every 100 ms."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.endpoint,
            "OTEL_METRICS_EXPORTER": "none",
            "OTEL_BSP_SCHEDULE_DELAY": "100",
        }

    async def __aenter__(self) -> OtlpCollector:
        for _ in range(3):  # try again: another process may have taken the free port
            if await self._start():
                return self
        raise RuntimeError("rotel-agent did not open its port; run it by hand with the arguments of this file")

    async def __aexit__(self, *_: object) -> None:
        await self._stop()

    async def spans(
        self, *, until: Callable[[list[ReceivedSpan]], bool] = bool, timeout: float = 10.0
    ) -> list[ReceivedSpan]:
        """Wait until `until` accepts the received spans, and return all of them.

        Raises:
            AssertionError: `until` accepted no spans within `timeout` seconds. The message lists the received spans.
        """
        deadline = time.monotonic() + timeout
        while True:
            size = len(self._output)
            await asyncio.sleep(_QUIET)
            if len(self._output) > size:  # the size is compared, because a late timer can fire before output is read
                continue
            spans = parse(self._output.decode("utf-8", "replace"))
            if until(spans):
                return spans
            if time.monotonic() > deadline:
                seen = "\n".join(f"  {s.service}: {s.name} ({s.kind}, parent {s.parent_id})" for s in spans)
                raise AssertionError(f"after {timeout:g} s the collector has {len(spans)} spans:\n{seen}")

    async def trace(
        self, trace_id: str, *, until: Callable[[list[ReceivedSpan]], bool], timeout: float = 40.0
    ) -> list[ReceivedSpan]:
        """Like `spans`, but for the spans of one trace."""

        def of_it(spans: list[ReceivedSpan]) -> list[ReceivedSpan]:
            return [span for span in spans if span.trace_id == trace_id]

        return of_it(await self.spans(until=lambda spans: until(of_it(spans)), timeout=timeout))

    async def _start(self) -> bool:
        found = find_spec("rotel")
        assert found is not None, "the package rotel is missing; `make venv` installs it"
        assert found.origin is not None
        binary = Path(found.origin).with_name("rotel-agent")
        http, grpc = free_ports(2)
        self._process = await asyncio.create_subprocess_exec(
            *(str(binary), "start", "--exporter", "blackhole"),
            *("--otlp-http-endpoint", f"127.0.0.1:{http}", "--otlp-grpc-endpoint", f"127.0.0.1:{grpc}"),
            *("--debug-log", "traces", "--debug-log-verbosity", "detailed"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={
                "PATH": os.environ.get("PATH", ""),
                "RUST_LOG": "error",
            },  # rotel's own log lines would appear between spans
        )
        self._reader = asyncio.create_task(self._read())
        self.endpoint = f"http://127.0.0.1:{http}"
        deadline = time.monotonic() + _START
        while time.monotonic() < deadline and self._process.returncode is None:
            with suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", http)
                writer.close()
                await writer.wait_closed()
                return True
            await asyncio.sleep(0.02)
        await self._stop()
        return False

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        while chunk := await self._process.stdout.read(65536):
            self._output += chunk

    async def _stop(self) -> None:
        process, reader = self._process, self._reader
        if process is None or reader is None:
            return
        with suppress(ProcessLookupError):
            process.kill()  # rotel has no data to save
        await asyncio.wait_for(process.wait(), 5)
        await asyncio.wait_for(reader, 5)
