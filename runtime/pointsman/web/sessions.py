"""Log users of the dashboard in and out, and return the user of a session."""

from __future__ import annotations

import time
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, Response

from pointsman.client.client import Client
from pointsman.web.auth import SESSION_COOKIE, LoginThrottle, client_of, is_plain_http, user_of
from pointsman.web.responses import json_response, read_json_object
from pointsman.web.users import SESSION_HOURS, Users, new_session

__all__ = ["Sessions"]

_STATIC = Path(__file__).with_name("static")


class Sessions:
    """The sessions of browsers.

    Args:
        client: The client of the dashboard.
        users: The users that may log in.
        throttle: The limit of wrong tokens of each address.
        plain_http: True to accept tokens from other machines over plain HTTP.
    """

    def __init__(self, client: Client, users: Users, throttle: LoginThrottle, *, plain_http: bool) -> None:
        self._client = client
        self._users = users
        self._throttle = throttle
        self._plain_http = plain_http

    async def form(self, request: Request) -> Response:
        """Return the login page."""
        return FileResponse(_STATIC / "login.html")

    async def log_in(self, request: Request) -> Response:
        """Begin a session for the token in the body.

        Returns:
            The user; or an error with status 401 for a wrong token, 403 for plain HTTP from another machine, or 429
            after too many wrong tokens.
        """
        address = request.client.host if request.client else ""
        if (wait := self._throttle.wait_of(address)) > 0:
            response = json_response({"error": "Too many wrong tokens. Wait a minute."}, 429)
            response.headers["retry-after"] = str(int(wait) + 1)
            return response
        if is_plain_http(request.scope) and not self._plain_http:
            problem = (
                "This page came over plain HTTP, so others can read the token. Open the dashboard by https://, or set "
            )
            return json_response({"error": problem + "POINTSMAN_DASHBOARD_PLAIN_HTTP."}, 403)
        given = (await read_json_object(request, ("token",))).get("token")
        user = self._users.of_token(given) if isinstance(given, str) else None
        if user is None:
            self._throttle.record_failure(address)
            return json_response({"error": "The token is wrong."}, 401)
        response = json_response({"name": user.name, "role": user.role})
        response.set_cookie(
            SESSION_COOKIE,
            new_session(user, time.time()),
            max_age=int(SESSION_HOURS * 3600),
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
            path="/",
        )
        return response

    async def log_out(self, request: Request) -> Response:
        """End the session of the browser."""
        response = json_response({"ok": True})
        response.delete_cookie(SESSION_COOKIE, path="/")
        return response

    async def me(self, request: Request) -> Response:
        """Return the name, the role and the caller of the user."""
        user = user_of(request.scope)
        name, role = (user.name, user.role) if user else ("", "operate")
        return json_response({"name": name, "role": role, "caller": client_of(request, self._client).user})
