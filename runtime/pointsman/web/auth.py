"""Guard the access to the dashboard, and restrict the browser with security headers.

| Attack | Defence |
|---|---|
| a foreign page with a name that resolves to this machine | `Host` must be an address, `localhost` or an allowed name |
| a foreign page that posts to the dashboard | `Origin` must be the host of the request, and the body must be JSON |
| another machine | without a token, the dashboard listens on loopback only |
| a script in the text of a model | text is drawn as text, and the policy runs only the package's own files |
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from hashlib import sha256
from http.cookies import CookieError, SimpleCookie

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pointsman.http.hosts import KnownHosts, constant_time_equal

__all__ = ["SECURITY_HEADERS", "SESSION_COOKIE", "AccessGuard", "session_cookie"]

SESSION_COOKIE = "pointsman_dashboard"

SECURITY_HEADERS: Mapping[str, str] = {
    "content-security-policy": "; ".join(
        (
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "img-src 'self'",
            "connect-src 'self'",
            "form-action 'self'",
            "base-uri 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}

_PUBLIC_PATHS = (
    "/login",
    "/static/",
)  # open without a token: the login form, and files that are public in the package


class AccessGuard:
    """An ASGI application that passes allowed requests to `app`, and adds `SECURITY_HEADERS` to every response."""

    def __init__(self, app: ASGIApp, *, token: str | None = None, hosts: Iterable[str] = ()) -> None:
        self._app = app
        self._token = token
        self._session = session_cookie(token) if token else ""
        self._hosts = KnownHosts(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # websockets and lifespan are not supported

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers[name] = value
                if not scope["path"].startswith("/static/"):
                    headers["cache-control"] = "no-store"
            await send(message)

        refused = self._refusal(scope)
        await (refused or self._app)(scope, receive, guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not self._hosts.allow(host):
            return _refuse(403, f"the host {host!r} is not known here; open the dashboard by its address, or"
            " start it with "
                            "--allow-host NAME")  # fmt: skip
        bearer = self._has_bearer_token(headers)
        path, method = scope["path"], scope["method"]
        if method not in ("GET", "HEAD"):
            origin = headers.get("origin", "")
            if not bearer and origin.partition("://")[2].lower() != host.lower():
                return _refuse(403, f"the origin {origin!r} is not this page, {host}")
        if self._token is None or bearer or path.startswith(_PUBLIC_PATHS) or self._has_session(headers):
            return None
        if method == "GET" and not path.startswith("/api/"):
            return RedirectResponse("/login", 303)
        return _refuse(401, "a token is needed: log in at /login, or send Authorization: Bearer TOKEN")

    def _has_bearer_token(self, headers: Headers) -> bool:
        kind, _, value = headers.get("authorization", "").partition(" ")
        return self._token is not None and kind.lower() == "bearer" and constant_time_equal(value.strip(), self._token)

    def _has_session(self, headers: Headers) -> bool:
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(SESSION_COOKIE)
        except CookieError:
            return False
        return cookie is not None and constant_time_equal(cookie.value, self._session)


def session_cookie(token: str) -> str:
    """Return the value of the session cookie for `token`. The token cannot be derived from the value."""
    return hmac.new(token.encode(), b"pointsman dashboard", sha256).hexdigest()


def _refuse(status: int, message: str) -> Response:
    return JSONResponse({"error": message}, status)
