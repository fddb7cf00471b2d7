"""Control the access to the dashboard, and send security headers to the browser.

| Attack | Defence |
|---|---|
| a foreign page whose host name resolves to this machine | `Host` must be an address, `localhost` or an allowed name |
| a foreign page that posts to the dashboard | `Origin` must be this host; only JSON and byte streams are accepted |
| another machine | without users, the dashboard listens on loopback only |
| the guessing of a token | after 10 wrong tokens in a minute, an address must wait |
| a stolen session | a session ends after 12 hours, or when the token of the user is removed |
| an eavesdropper on the network | over plain HTTP, a login works only on loopback; over HTTPS, the cookie is `Secure` |
| a script in the text of a model | text is shown as text, and only scripts of the package may run |
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from http.cookies import CookieError, SimpleCookie

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pointsman.client.client import Client
from pointsman.http.hosts import KnownHosts, host_name
from pointsman.util.network import is_loopback
from pointsman.web.users import Role, User, Users

__all__ = [
    "SECURITY_HEADERS",
    "SESSION_COOKIE",
    "AccessGuard",
    "LoginThrottle",
    "actor_of",
    "client_of",
    "is_plain_http",
    "user_of",
]

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
)  # open without a token: the login form, and files of the public package


_USER_KEY = "pointsman.user"  # the key of the user in the ASGI scope
_MAX_FAILURES = 10  # number of wrong tokens that one address may send in a window
_FAILURE_WINDOW_S = 60.0
_MAX_ADDRESSES = 10_000  # number of addresses whose failures are in memory


class LoginThrottle:
    """Count wrong tokens by address. After too many, the address must wait, so guessing a token takes too long.

    Args:
        monotonic: The clock, in seconds.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()

    def wait_of(self, address: str) -> float:
        """Return the seconds until the address may try again; 0 if the address may try now."""
        failures = self._failures.get(address, deque[float]())
        while failures and failures[0] <= self._monotonic() - _FAILURE_WINDOW_S:
            failures.popleft()
        return 0.0 if len(failures) < _MAX_FAILURES else failures[0] + _FAILURE_WINDOW_S - self._monotonic()

    def record_failure(self, address: str) -> None:
        """Record a wrong token."""
        self._failures.setdefault(address, deque(maxlen=_MAX_FAILURES)).append(self._monotonic())
        self._failures.move_to_end(address)
        while len(self._failures) > _MAX_ADDRESSES:
            self._failures.popitem(last=False)


class AccessGuard:
    """An ASGI application that passes allowed requests to `app`, and adds `SECURITY_HEADERS` to every response.

    Args:
        app: The application.
        users: The users; without users, every request may do everything.
        hosts: Host names that requests may use, in addition to addresses and `localhost`.
        throttle: The counter of wrong tokens. Default: a new counter.
    """

    def __init__(
        self, app: ASGIApp, *, users: Users, hosts: Iterable[str] = (), throttle: LoginThrottle | None = None
    ) -> None:
        self._app = app
        self._users = users
        self._throttle = throttle or LoginThrottle()
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
            known = f"the host {host!r} is not a known host of the dashboard"
            return _refuse(403, f"{known}; use the IP address, or start the dashboard with --allow-host NAME")
        path, method = scope["path"], scope["method"]
        kind, _, given = headers.get("authorization", "").partition(" ")
        user: User | None = None
        if self._users and kind.lower() == "bearer" and not path.startswith(_PUBLIC_PATHS):
            address = (scope.get("client") or ("",))[0]
            if (wait := self._throttle.wait_of(address)) > 0:
                return _refuse(429, "too many wrong tokens; wait a minute", {"retry-after": str(int(wait) + 1)})
            if (user := self._users.of_token(given.strip())) is None:
                self._throttle.record_failure(address)
                return _unauthorized("the token is not valid")
        if method not in ("GET", "HEAD") and user is None:
            origin = headers.get("origin", "")
            if origin.partition("://")[2].lower() != host.lower():
                return _refuse(403, f"the origin {origin!r} is not the origin of this page, {host}")
        if not self._users or path.startswith(_PUBLIC_PATHS):
            return None
        user = user or self._user_of_session(headers)
        if user is None:
            if method == "GET" and not path.startswith("/api/"):
                return RedirectResponse("/login", 303)
            return _unauthorized("a token is needed: log in at /login, or send Authorization: Bearer TOKEN")
        scope[_USER_KEY] = user
        if not user.may(needed := _role_for(method, path)):
            return _refuse(403, f"{user.name} has the role {user.role}; this action needs the role {needed}")
        return None

    def _user_of_session(self, headers: Headers) -> User | None:
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(SESSION_COOKIE)
        except CookieError:
            return None
        return self._users.of_session(cookie.value, time.time()) if cookie is not None else None


def user_of(scope: Scope) -> User | None:
    """Return the user of an admitted request; None if the dashboard has no users."""
    user: User | None = scope.get(_USER_KEY)
    return user


def actor_of(request: Request) -> str:
    """Return the name under which the actions of a request are recorded; `dashboard` without users.

    Args:
        request: An admitted request.

    Returns:
        The name.
    """
    user = user_of(request.scope)
    return user.name if user else "dashboard"


def client_of(request: Request, client: Client) -> Client:
    """Return a client whose requests contain the name of the user; `client` if the dashboard has no users.

    Args:
        request: An admitted request.
        client: The client of the dashboard.

    Returns:
        The client.
    """
    user = user_of(request.scope)
    return client.for_user(user.name) if user else client


def is_plain_http(scope: Scope) -> bool:
    """Return True if others can read a request: it came over plain HTTP, and not to a loopback address."""
    return scope["scheme"] != "https" and not is_loopback(host_name(Headers(scope=scope).get("host", "")))


def _role_for(method: str, path: str) -> Role:
    if method in ("GET", "HEAD") or path == "/logout":
        return "look"
    return "approve" if path.startswith("/api/questions/") else "operate"


def _refuse(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    return JSONResponse({"error": message}, status, headers)


def _unauthorized(message: str) -> Response:
    return _refuse(401, message, {"www-authenticate": "Bearer"})
