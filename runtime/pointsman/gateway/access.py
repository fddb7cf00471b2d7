"""Admit requests.

Check the host, the key or token, the size of the body, the caller's rate, and the number of the caller's open requests.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Literal

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pointsman.errors import PeerError
from pointsman.gateway.callers import LOCAL_CALLER, Caller
from pointsman.gateway.context import Context
from pointsman.gateway.keys import KEY_PREFIX, ApiKey
from pointsman.gateway.problems import ProblemError, problem_response
from pointsman.gateway.protected_resource import MCP_PATH, METADATA_PATHS, metadata_url
from pointsman.gateway.rates import CallerRates
from pointsman.http.hosts import KnownHosts
from pointsman.index.callers import CallerLimits, OpenCounts

__all__ = ["Access", "is_openai_path"]

_BODY_TIMEOUT_S = 30.0  # seconds in which a client must send the body of a request, or the next piece of an upload
_UPLOAD_PATHS = ("/v1/files", "/v1/batches")
_FORM_BYTES = 65_536  # bytes of an upload form, without the bytes of the file
_MINUTE_S, _DAY_S = 60.0, 86_400.0
_PUBLIC_PATHS = frozenset({"/healthz", "/readyz", "/openapi.json", "/docs", "/", "/a2a/keys.json", *METADATA_PATHS})
_SIGNED_PATHS = "/v1/hooks/"
_SENDERS = "> senders"  # the name under which signed webhooks count; it is not a token, so no caller can have this name
_OPENAI_PATHS = ("/v1/models", "/v1/chat/", "/v1/responses")
_SECURITY_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
}


def is_openai_path(path: str) -> bool:
    """Return True for a path of the OpenAI-compatible API, whose errors have a different shape.

    Args:
        path: The path.
    """
    return path.startswith(_OPENAI_PATHS)


class Access:
    """An ASGI application that passes admitted requests to `app`.

    Args:
        app: The application.
        context: The parts of the gateway.
        hosts: Names of hosts that requests without a key may use, in addition to addresses and `localhost`.
        open: True if the gateway listens only on loopback. A request without a key then has the caller `LOCAL_CALLER`,
            an operator.
    """

    def __init__(self, app: ASGIApp, context: Context, *, hosts: list[str], open: bool) -> None:
        self._app = app
        self._context = context
        self._hosts = KnownHosts(hosts)
        self._open = open
        self._requests = 0
        self._open_requests = OpenCounts()
        self._rates = CallerRates(_MINUTE_S)
        self._bytes = CallerRates(_DAY_S)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        started = False

        async def guarded(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                for name, value in _SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        shape: Literal["problem", "openai"] = "openai" if is_openai_path(scope["path"]) else "problem"
        most = self._context.settings.gateway_max_requests
        if self._requests >= most:
            busy = ProblemError(
                503, "busy", f"the gateway already serves {most} requests; try again", headers={"retry-after": "1"}
            )
            await problem_response(busy, shape)(scope, receive, guarded)
            return
        self._requests += 1
        try:
            name = await self._admit(scope)
            self._check_room(name)
            with self._open_requests.one_more(name):
                await self._app(scope, self._bounded(scope, receive), guarded)
        except ProblemError as problem:
            if started:
                raise
            await problem_response(problem, shape)(scope, receive, guarded)
        finally:
            self._requests -= 1

    async def _admit(self, scope: Scope) -> str:
        """Admit a request, and return the name under which the request counts as open; empty for public paths."""
        headers = Headers(scope=scope)
        path = scope["path"]
        if path in _PUBLIC_PATHS:
            return ""
        if path.startswith(_SIGNED_PATHS):
            # The caller is known only after the body and its signature are read. The route then counts the request for
            # the caller. Until then, the request counts as an open request of all senders together.
            scope.setdefault("state", {})["charge"] = self._charge
            return _SENDERS
        caller = await self._caller(headers, scope)
        self._charge(caller)
        scope.setdefault("state", {}).update(caller=caller, charge=partial(self._charge, caller))
        return self._bounded_name(caller)

    def _bounded_name(self, caller: Caller) -> str:
        """Return the name under which requests and bytes of a caller count; empty for a local user without a key."""
        return "" if self._open and caller.name == LOCAL_CALLER else caller.name

    def _check_room(self, name: str) -> None:
        """Refuse a request if the name has too many open requests, so that other callers can still send requests."""
        most = self._context.settings.gateway_caller_requests
        if name and self._open_requests[name] >= most:
            whose = "senders of webhooks have" if name == _SENDERS else f"{name} has"
            raise ProblemError(
                429, "too_many_open", f"{whose} {most} open requests and streams; close a stream, or try again",
                headers={"retry-after": "1"},
            )  # fmt: skip

    async def _caller(self, headers: Headers, scope: Scope) -> Caller:
        kind, _, given = headers.get("authorization", "").partition(" ")
        given = given.strip() if kind.lower() == "bearer" else headers.get("x-api-key", "")
        if self._open and not given.startswith((KEY_PREFIX, "ey")):
            # SDKs of OpenAI demand some key. On loopback, any text that is neither a key nor a token counts as no key.
            self._check_origin(headers)
            limits = CallerLimits(
                requests_per_minute=1_000_000, running=1_000_000
            )  # very high: local users share one name, and one of them must not lock out the others
            return Caller(LOCAL_CALLER, operator=True, limits=limits)
        if given.startswith(KEY_PREFIX) and (key := self._context.keys.find(given)) is not None:
            return _caller_of(key, self._context)
        if given and not given.startswith(KEY_PREFIX) and self._context.verifier is not None:
            try:
                found = await self._context.verifier.verify(given)
            except PeerError as error:
                raise ProblemError(503, "issuer_unavailable", str(error), headers={"retry-after": "5"}) from None
            if found is not None:
                return found
        raise ProblemError(
            401,
            "not_authenticated",
            "the key is unknown, revoked or expired; make a key with `pointsman gateway keys create`"
            if given
            else "the request has no key; send Authorization: Bearer KEY",
            headers={"www-authenticate": self._challenge(scope)},
        )

    def _challenge(self, scope: Scope) -> str:
        """Return the challenge of a refused request. For MCP, it has the address of metadata that name the issuer."""
        challenge = 'Bearer realm="pointsman"'
        if self._context.verifier is not None and scope["path"] == MCP_PATH:
            challenge += f', resource_metadata="{metadata_url(scope)}"'
        return challenge

    def _check_origin(self, headers: Headers) -> None:
        """Refuse requests of foreign web pages, because a gateway without keys has no other protection against them."""
        host = headers.get("host", "")
        if not self._hosts.allow(host):
            raise ProblemError(
                403, "unknown_host", f"the host {host[:200]!r} is not a known host of the gateway; use the IP address"
            )
        origin = headers.get("origin")
        allowed = [each.strip() for each in (self._context.settings.gateway_origins or "").split(",")]
        if origin is not None and origin not in allowed and origin.partition("://")[2].lower() != host.lower():
            raise ProblemError(
                403,
                "unknown_origin",
                f"the origin {origin[:200]!r} is not allowed; add the origin to POINTSMAN_GATEWAY_ORIGINS",
            )

    def _charge(self, caller: Caller) -> None:
        """Count one request of a caller, or refuse the request."""
        limit = caller.limits.requests_per_minute
        if limit is not None and (wait := self._rates.spend(caller.name, limit)) > 0:
            raise ProblemError(
                429, "too_many_requests", f"{caller.name} may send {limit} requests a minute; wait {wait:.0f} s",
                headers={"retry-after": str(max(1, round(wait)))},
            )  # fmt: skip

    def _charge_bytes(self, caller: str, size: int) -> None:
        """Count bytes of a caller, or refuse the body, so that one caller cannot fill the disk of the broker."""
        most = self._context.settings.gateway_daily_bytes
        if size and (wait := self._bytes.spend(caller, most, size)) > 0:
            raise ProblemError(
                429,
                "too_many_bytes",
                f"{caller} may send {most} bytes a day; wait {wait:.0f} s, or raise POINTSMAN_GATEWAY_DAILY_BYTES",
                headers={"retry-after": str(max(1, round(wait))), "connection": "close"},
            )

    def _bounded(self, scope: Scope, receive: Receive) -> Receive:
        """Return a `receive` that refuses a body that is too large or too slow."""
        settings = self._context.settings
        most, seconds, setting = settings.gateway_max_body, _BODY_TIMEOUT_S, "POINTSMAN_GATEWAY_MAX_BODY"
        if scope["path"] in _UPLOAD_PATHS:
            most, seconds = settings.max_file_bytes + _FORM_BYTES, settings.gateway_upload_timeout
            setting = "POINTSMAN_MAX_FILE_BYTES"
        caller: Caller | None = scope.get("state", {}).get("caller")
        sender = "" if caller is None else self._bounded_name(caller)
        length = Headers(scope=scope).get("content-length", "")
        if length.isascii() and length.isdecimal() and int(length[:19]) > most:
            raise _too_large(most, setting)
        size, whole = 0, False
        clock = asyncio.get_running_loop().time
        until = clock() + seconds

        async def bounded() -> Message:
            nonlocal size, whole
            if whole:
                return await receive()  # no timeout here: a stream waits until the client disconnects
            try:
                async with asyncio.timeout_at(min(until, clock() + _BODY_TIMEOUT_S)):
                    message = await receive()
            except TimeoutError:
                raise ProblemError(
                    408, "body_too_slow", "the body did not arrive in time: a piece took more than "
                                          f"{_BODY_TIMEOUT_S:g} s, or the whole body took more than {seconds:g} s; "
                                          "send the body again",
                    headers={"connection": "close"},
                ) from None  # fmt: skip
            size += len(message.get("body", b""))
            whole = not message.get("more_body", False)
            if size > most:
                raise _too_large(most, setting)
            if sender:
                self._charge_bytes(sender, len(message.get("body", b"")))
            return message

        return bounded


def _too_large(most: int, setting: str) -> ProblemError:
    return ProblemError(413, "too_large", f"the body has more than {most} bytes; send less, or raise {setting}")


def _caller_of(key: ApiKey, context: Context) -> Caller:
    teams = None if key.teams is None else frozenset(key.teams)
    return Caller(key.caller, teams=teams, operator=key.operator, limits=key.limits.over(context.settings))
