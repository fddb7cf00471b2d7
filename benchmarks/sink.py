"""A receiver of OTLP over HTTP that reads everything, keeps nothing, and tells how much it was on GET /.

`python -m benchmarks.sink [works|is slow|hangs]`: a slow one answers after a second, one that hangs never does.
"""

from __future__ import annotations

import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from pointsman.processes import end_with_parent

__all__ = ["main"]


class _Sink(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    received = 0
    delay = 0.0  # seconds until it answers

    def do_POST(self) -> None:
        _Sink.received += len(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        time.sleep(_Sink.delay)
        self._answer(b"")

    def do_GET(self) -> None:
        self._answer(str(_Sink.received).encode())

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None: ...


def main() -> None:
    end_with_parent()
    _Sink.delay = {"works": 0.0, "is slow": 1.0, "hangs": 3600.0}[sys.argv[1] if len(sys.argv) > 1 else "works"]
    with ThreadingHTTPServer(("127.0.0.1", 0), _Sink) as server:
        print(server.server_port, flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
