"""An OpenID Connect issuer on loopback."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

__all__ = ["CONFIGURATION", "Issuer", "issuing", "new_key"]

CONFIGURATION = "/.well-known/openid-configuration"


def new_key() -> rsa.RSAPrivateKey:
    """Return a private key."""
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


class Issuer:
    """An issuer with one key. `asked` has the requested paths."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.key = new_key()
        self.kid = "one"
        self.jwk: dict[str, Any] = {}
        """More fields of the key, or replaced values."""
        self.answers: dict[str, tuple[int, dict[str, str], bytes]] = {}
        """Status, headers and body that replace the correct answer for a path."""
        self.asked: list[str] = []

    def token(self, *, key: Any = None, algorithm: str = "RS256", **claims: Any) -> str:
        """Return a token. A claim with the value None is omitted."""
        whole = {"iss": self.url, "aud": "pointsman", "sub": "ada", "exp": int(time.time()) + 60, **claims}
        content = {name: value for name, value in whole.items() if value is not None}
        return jwt.encode(content, self.key if key is None else key, algorithm=algorithm, headers={"kid": self.kid})

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body for a path."""
        self.asked.append(path)
        if path in self.answers:
            return self.answers[path]
        jwk = {**RSAAlgorithm.to_jwk(self.key.public_key(), as_dict=True), "kid": self.kid, "use": "sig", **self.jwk}
        documents = {
            CONFIGURATION: {"issuer": self.url, "jwks_uri": f"{self.url}/keys"},
            "/keys": {"keys": [jwk]},
        }
        return (200, {}, json.dumps(documents[path]).encode()) if path in documents else (404, {}, b"")


@contextmanager
def issuing() -> Iterator[Issuer]:
    """Serve an issuer on a free port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, headers, body = issuer.answer(self.path)
            self.send_response(status)
            for name, value in {"content-length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Write nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    issuer = Issuer(f"http://127.0.0.1:{server.server_address[1]}")
    thread = Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield issuer
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
