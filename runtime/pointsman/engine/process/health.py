"""`/healthz`, `/readyz` and `/metrics` over HTTP, for health checks and Prometheus.

| Path | 200 when | Otherwise |
|---|---|---|
| `/healthz` | the event loop answers | no answer |
| `/readyz` | the broker serves every consumer of the process, and the supervisor has processed the messages that \
were in the team's inbox at its start | 503; the body names the unmet conditions |
| `/metrics` | the extra `prometheus` is installed | 404 |

`/healthz` and `/readyz` answer with one JSON object. `/metrics` answers in the Prometheus text format. The server reads
only the first line of a request and ignores the headers, so the server needs no framework.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from pointsman.errors import ConfigurationError
from pointsman.telemetry import get_logger
from pointsman.util.network import is_loopback

__all__ = ["serve_health"]

_log = get_logger(__name__)

_REQUEST_TIMEOUT_S = 2.0  # seconds in which a caller must send its request; probes are local and send one packet
_MAX_REQUEST_BYTES = 8_192


@asynccontextmanager
async def serve_health(
    host: str, port: int, waiting_for: Callable[[], Sequence[str]], exposition: Callable[[], bytes] | None = None
) -> AsyncIterator[int]:
    """Answer health requests on `host` and `port` until the context ends.

    `waiting_for` returns the conditions that the process does not meet. If the result is empty, the process is ready.
    `exposition` returns the body of `/metrics`.

    Yields:
        The port: `port`, or a free port for 0.

    Raises:
        ConfigurationError: The port is not available.
    """
    callers: set[asyncio.StreamWriter] = set()

    async def called(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        callers.add(writer)
        try:
            async with asyncio.timeout(_REQUEST_TIMEOUT_S):
                asked = await reader.readuntil(b"\r\n\r\n")
                writer.write(_reply(asked.split(b"\r\n", 1)[0], waiting_for, exposition))
                await writer.drain()
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError, TimeoutError):
            pass  # the caller sent no request or disconnected
        finally:
            callers.discard(writer)
            writer.close()

    try:
        server = await asyncio.start_server(called, host, port, limit=_MAX_REQUEST_BYTES)
    except OSError as error:
        raise ConfigurationError(
            f"no health checks on {host}:{port}: {error.strerror or error}; choose another POINTSMAN_HEALTH_PORT, "
            "0 for a free port"
        ) from None
    bound: int = server.sockets[0].getsockname()[1]
    _log.info("health_served", url=f"http://{host}:{bound}", port=bound)
    if not is_loopback(host):
        _log.warning(
            "health_reachable",
            host=host,
            port=bound,
            hint="other machines can read /metrics and the names of missing services; set POINTSMAN_HEALTH_HOST to "
            "127.0.0.1, or let a network policy admit probes and scrapers only",
        )
    try:
        yield bound
    finally:
        server.close()
        for writer in tuple(callers):
            writer.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(_REQUEST_TIMEOUT_S):
                await server.wait_closed()


def _reply(
    asked: bytes, waiting_for: Callable[[], Sequence[str]], exposition: Callable[[], bytes] | None = None
) -> bytes:
    method, _, rest = asked.partition(b" ")
    path = rest.partition(b" ")[0].partition(b"?")[0]
    if method not in (b"GET", b"HEAD"):
        return _response("405 Method Not Allowed", {"error": "only GET and HEAD"})
    match path:
        case b"/healthz":
            return _response("200 OK", {"alive": True}, method)
        case b"/readyz":
            missing = list(waiting_for())
            status = "503 Service Unavailable" if missing else "200 OK"
            return _response(status, {"ready": not missing, "waiting_for": missing}, method)
        case b"/metrics" if exposition is not None:
            return _response_head("200 OK", "text/plain; version=0.0.4; charset=utf-8", exposition(), method)
        case b"/metrics":
            hint = (
                "metrics of supervisors and workers need pip install 'pointsman[prometheus]', and an "
                "OTEL_METRICS_EXPORTER other than none"
            )
            return _response("404 Not Found", {"error": "this process records no metrics", "hint": hint}, method)
        case _:
            return _response("404 Not Found", {"error": "the paths are /healthz, /readyz and /metrics"}, method)


def _response(status: str, content: dict[str, Any], method: bytes = b"GET") -> bytes:
    return _response_head(status, "application/json", json.dumps(content).encode(), method)


def _response_head(status: str, kind: str, body: bytes, method: bytes) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        "Cache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (b"" if method == b"HEAD" else body)
