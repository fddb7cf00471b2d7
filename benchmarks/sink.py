"""Run a receiver of OTLP over HTTP that discards all data. `GET /` returns the number of received bytes.

`python -m benchmarks.sink [works|is slow|hangs|answers 503]`: `is slow` answers after a second, `hangs` never answers,
and `answers 503` rejects everything.
"""

from __future__ import annotations

import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from pointsman.util.child_processes import exit_with_parent

__all__ = ["main"]


class _Sink(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    received = 0
    delay = 0.0  # seconds before an answer to a POST
    status = 200  # of the answer to a POST

    def do_POST(self) -> None:
        _Sink.received += len(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        time.sleep(_Sink.delay)
        self._answer(_Sink.status, b"")

    def do_GET(self) -> None:
        self._answer(200, str(_Sink.received).encode())

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None: ...


def main() -> None:
    exit_with_parent()
    behaviour = sys.argv[1] if len(sys.argv) > 1 else "works"
    _Sink.delay = {"is slow": 1.0, "hangs": 3600.0}.get(behaviour, 0.0)
    _Sink.status = 503 if behaviour == "answers 503" else 200
    with ThreadingHTTPServer(("127.0.0.1", 0), _Sink) as server:
        print(server.server_port, flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
