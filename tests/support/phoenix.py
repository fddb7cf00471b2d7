"""An independent telemetry backend: Arize Phoenix, in a separate process, with its own query interface.

async with Phoenix(folder, executable) as backend:
    ... run processes with **backend.environment ...
    spans = await backend.trace(trace_id, until=lambda spans: len(spans) >= 3)
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Phoenix", "SeenSpan"]

_START = 150.0  # seconds; creating the database takes 20 on an idle machine
_POLL = 0.2


@dataclass(frozen=True, slots=True)
class SeenSpan:
    """A span as the backend returns it."""

    name: str
    span_id: str
    parent_id: str | None
    status: str
    attributes: Mapping[str, Any]
    events: tuple[str, ...]


class Phoenix:
    """The server on free ports of the loopback interface, with its database in `folder`."""

    def __init__(self, folder: Path, executable: str) -> None:
        self._folder = folder
        self._executable = executable
        self._process: asyncio.subprocess.Process | None = None
        self._url = ""

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of a process that exports to this backend."""
        return {
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{self._url}/v1/traces",
            "OTEL_METRICS_EXPORTER": "none",
            "OTEL_BSP_SCHEDULE_DELAY": "100",
        }

    async def __aenter__(self) -> Phoenix:
        http, grpc = _free_ports()
        self._url = f"http://127.0.0.1:{http}"
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "phoenix.log").open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                self._executable,
                "serve",
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={
                    "PATH": os.environ.get("PATH", ""),
                    "HOME": str(self._folder),
                    "PHOENIX_WORKING_DIR": str(self._folder),
                    "PHOENIX_HOST": "127.0.0.1",
                    "PHOENIX_PORT": str(http),
                    "PHOENIX_GRPC_PORT": str(grpc),
                    "PHOENIX_TELEMETRY_ENABLED": "false",
                },
            )
        deadline = time.monotonic() + _START
        while time.monotonic() < deadline and self._process.returncode is None:
            with suppress(OSError):
                await asyncio.to_thread(self._get, "/healthz")
                return self
            await asyncio.sleep(_POLL)
        log_text = (self._folder / "phoenix.log").read_text(errors="replace")[-2000:]
        await self.__aexit__()
        raise RuntimeError(f"Phoenix did not start:\n{log_text}")

    async def __aexit__(self, *_: object) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()  # the database is temporary
            await self._process.wait()

    async def trace(
        self, trace_id: str, *, until: Callable[[list[SeenSpan]], bool], timeout: float = 40.0
    ) -> list[SeenSpan]:
        """Wait until `until` accepts the spans of a trace, and return them. Raise AssertionError after `timeout` s."""
        deadline = time.monotonic() + timeout
        while True:
            found = await asyncio.to_thread(self._spans, trace_id)
            if until(found):
                return found
            if time.monotonic() > deadline:
                raise AssertionError(f"after {timeout:g} s the backend has {[span.name for span in found]}")
            await asyncio.sleep(_POLL)

    def _spans(self, trace_id: str) -> list[SeenSpan]:
        try:
            answer = json.loads(self._get(f"/v1/projects/default/spans?limit=1000&trace_id={trace_id}"))
        except urllib.error.HTTPError as error:
            if error.code == 404:  # the project is created by its first span
                return []
            raise
        return [
            SeenSpan(
                span["name"],
                span["context"]["span_id"],
                span["parent_id"] or None,
                span["status_code"].lower(),
                span["attributes"],
                tuple(event["name"] for event in span["events"]),
            )
            for span in answer["data"]
            if span["context"]["trace_id"] == trace_id
        ]

    def _get(self, path: str) -> bytes:
        with urllib.request.urlopen(self._url + path, timeout=10) as answer:
            body: bytes = answer.read()
            return body


def _free_ports() -> tuple[int, int]:
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0))
        second.bind(("127.0.0.1", 0))
        return first.getsockname()[1], second.getsockname()[1]
