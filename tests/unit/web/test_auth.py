"""Access to the dashboard: tokens, origins, and the headers of every answer."""

from __future__ import annotations

import asyncio

import pytest
from support.asgi import HOST, request

from pointsman.bus.memory.bus import MemoryBus
from pointsman.client.client import Client
from pointsman.errors import ConfigurationError
from pointsman.util.network import is_loopback
from pointsman.web.auth import SESSION_COOKIE, session_cookie
from pointsman.web.dashboard import Dashboard
from pointsman.web.server import serve

TOKEN = "correct-horse-battery"
PATHS = ["/", "/workflows/wf_1", "/agents", "/dead-letters", "/login", "/static/app.js", "/api/nothing", "/nowhere"]


@pytest.fixture
async def dashboard() -> Dashboard:
    return Dashboard(Client(MemoryBus()))


@pytest.fixture
async def locked() -> Dashboard:
    return Dashboard(Client(MemoryBus()), token=TOKEN, hosts=["ops.example"])


@pytest.mark.parametrize("path", PATHS)
async def test_every_answer_allows_the_browser_nothing_but_the_packages_own_files(
    dashboard: Dashboard, path: str
) -> None:
    answer = await request(dashboard.app, "GET", path)

    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["x-frame-options"] == "DENY"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8400", "127.0.0.1.evil.example", "", "[evil]:1"])
async def test_a_name_that_was_made_to_resolve_to_this_machine_is_refused(dashboard: Dashboard, host: str) -> None:
    answer = await request(dashboard.app, "GET", "/api/dead-letters/x", host=host)

    assert answer.status == 403
    assert "--allow-host" in answer.json["error"]


@pytest.mark.parametrize("host", ["127.0.0.1:8400", "localhost:1", "localhost", "[::1]:8400", "192.0.2.7:80"])
async def test_addresses_and_localhost_are_known(dashboard: Dashboard, host: str) -> None:
    assert (await request(dashboard.app, "GET", "/", host=host)).status == 200


async def test_a_name_can_be_allowed(locked: Dashboard) -> None:
    assert (await request(locked.app, "GET", "/login", host="OPS.example:443")).status == 200


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "", f"http://{HOST}.evil.example", "http://127.0.0.1:9"]
)
async def test_another_page_cannot_post_here(dashboard: Dashboard, origin: str) -> None:
    answer = await request(dashboard.app, "POST", "/api/requests", {"team": "crew", "input": "x"}, origin=origin)

    assert answer.status == 403
    assert await dashboard.client.bus.last("work", "pointsman.request.*") is None


async def test_posted_body_must_be_declared_as_json(dashboard: Dashboard) -> None:
    answer = await request(
        dashboard.app, "POST", "/api/requests", {"team": "crew", "input": "x"}, content_type="text/plain"
    )

    assert answer.status == 422
    assert await dashboard.client.bus.last("work", "pointsman.request.*") is None


@pytest.mark.parametrize("path", ["/api/requests", "/api/workflows/wf_1/cancel", "/api/dead-letters/x/replay"])
async def test_nothing_changes_by_a_get(dashboard: Dashboard, path: str) -> None:
    assert (await request(dashboard.app, "GET", path)).status == 405


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": f"Basic {TOKEN}"},
        {"cookie": f"{SESSION_COOKIE}=wrong"},
        {"cookie": f"{SESSION_COOKIE}={TOKEN}"},
        {"cookie": "\x01;=;;"},
    ],
)
async def test_without_the_token_there_is_the_door_and_nothing_else(locked: Dashboard, headers: dict[str, str]) -> None:
    page = await request(locked.app, "GET", "/agents", **headers)
    api = await request(locked.app, "GET", "/api/live/agents", **headers)
    door = await request(locked.app, "GET", "/login", **headers)

    assert (page.status, page.headers["location"]) == (303, "/login")
    assert api.status == 401
    assert door.status == 200


async def test_token_opens_by_header_and_by_cookie(locked: Dashboard) -> None:
    entered = await request(locked.app, "POST", "/login", {"token": TOKEN})
    cookie = entered.headers["set-cookie"]
    by_cookie = await request(locked.app, "GET", "/agents", cookie=cookie.split(";")[0])
    by_header = await request(locked.app, "GET", "/agents", authorization=f"Bearer {TOKEN}")

    assert (entered.status, by_cookie.status, by_header.status) == (200, 200, 200)
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= {part.strip() for part in cookie.split(";")}
    assert TOKEN not in cookie


async def test_a_wrong_token_opens_nothing(locked: Dashboard) -> None:
    answer = await request(locked.app, "POST", "/login", {"token": "guess"})

    assert answer.status == 401
    assert "set-cookie" not in answer.headers


async def test_a_program_with_the_token_needs_no_origin(locked: Dashboard) -> None:
    answer = await request(
        locked.app, "POST", "/api/requests", {"team": "crew", "input": "x"}, origin="", authorization=f"Bearer {TOKEN}"
    )

    assert answer.status == 200


def test_the_cookie_follows_from_the_token_alone() -> None:
    assert session_cookie(TOKEN) == session_cookie(TOKEN) != session_cookie(TOKEN + "x")


@pytest.mark.parametrize(
    ("host", "token", "said"),
    [
        ("0.0.0.0", None, "--token"),
        ("::", None, "--token"),
        ("192.0.2.7", None, "--token"),
        ("ops.example", None, "--token"),
        ("0.0.0.0", "short", "16"),
        ("127.0.0.1", "", "16"),
    ],
)
async def test_where_others_can_reach_it_a_token_is_needed(host: str, token: str | None, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        await serve(Client(MemoryBus()), host=host, port=0, token=token, hosts=(), stop=asyncio.Event(), ready=print)


@pytest.mark.parametrize(
    ("host", "is_it"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("example.org", False),
    ],
)
def test_loopback_addresses_are_recognized(host: str, is_it: bool) -> None:
    assert is_loopback(host) is is_it
