"""Access to the dashboard: tokens, origins and the headers of every response."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.asgi import HOST, request

from pointsman.bus.memory.bus import MemoryBus
from pointsman.client.client import Client
from pointsman.errors import ConfigurationError
from pointsman.settings import Settings
from pointsman.util.network import is_loopback
from pointsman.web import responses
from pointsman.web.auth import SESSION_COOKIE, LoginThrottle
from pointsman.web.dashboard import Dashboard
from pointsman.web.server import check_access
from pointsman.web.users import Role, User, Users, new_session, token_digest

TOKEN = "correct-horse-battery"
TOKENS = {"look": "token-of-a-looker", "approve": "token-of-an-approver", "operate": TOKEN}
USERS = Users([User(f"the-{role}", role, token_digest(token)) for role, token in TOKENS.items()])  # type: ignore[arg-type]
PATHS = ["/", "/workflows/wf_1", "/agents", "/dead-letters", "/login", "/static/app.js", "/api/nothing", "/nowhere"]


@pytest.fixture
async def dashboard() -> Dashboard:
    return await Dashboard.open(Client(MemoryBus()), Settings())


@pytest.fixture
async def locked() -> Dashboard:
    return await Dashboard.open(Client(MemoryBus()), Settings(), users=USERS, hosts=["ops.example"])


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
    assert await dashboard.client.bus.last("requests", "pointsman.request.*.*") is None


async def test_posted_body_must_be_declared_as_json(dashboard: Dashboard) -> None:
    answer = await request(
        dashboard.app, "POST", "/api/requests", {"team": "crew", "input": "x"}, content_type="text/plain"
    )

    assert answer.status == 422
    assert await dashboard.client.bus.last("requests", "pointsman.request.*.*") is None


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
async def test_without_the_token_only_the_login_page_is_served(locked: Dashboard, headers: dict[str, str]) -> None:
    page = await request(locked.app, "GET", "/agents", **headers)
    api = await request(locked.app, "GET", "/api/live/agents", **headers)
    door = await request(locked.app, "GET", "/login", **headers)

    if headers.get("authorization", "").startswith("Bearer"):
        assert page.status == 401  # a program, not a browser
    else:
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


def user(name: str = "anna", role: Role = "operate", token: str = TOKEN) -> User:
    return User(name, role, token_digest(token))


@pytest.mark.parametrize(
    ("users", "later", "is_valid"),
    [
        ([user()], 12 * 3600 - 1, True),
        ([user()], 12 * 3600 + 1, False),
        ([user(token="another-token-of-her")], 1, False),
        ([user(role="look")], 1, False),
        ([user("berta")], 1, False),
        ([], 1, False),
    ],
)
def test_a_session_ends_with_its_time_its_token_and_its_role(users: list[User], later: float, is_valid: bool) -> None:
    session = new_session(user(), now=1_000_000.0)

    assert (Users(users).of_session(session, 1_000_000.0 + later) is not None) is is_valid


@pytest.mark.parametrize(
    "session", ["", ".", "anna", "anna.9999999999", "anna.9999999999.", "anna.x.y", "anna.²¹.y", "\udce9"]
)
def test_a_malformed_session_is_no_session(session: str) -> None:
    assert Users([user()]).of_session(session, 0.0) is None


def test_a_session_cannot_be_prolonged() -> None:
    name, expires, code = new_session(user(), now=0.0).split(".")

    assert Users([user()]).of_session(f"{name}.{int(expires) + 1}.{code}", 0.0) is None


@pytest.mark.parametrize(
    ("method", "path", "needed"),
    [
        ("GET", "/api/live/agents", "look"),
        ("GET", "/api/workflows/wf_1/export", "look"),
        ("POST", "/api/questions/a/approve", "approve"),
        ("POST", "/api/questions/a/reject", "approve"),
        ("POST", "/api/requests", "operate"),
        ("POST", "/api/workflows/wf_1/cancel", "operate"),
        ("POST", "/api/dead-letters/x/discard", "operate"),
        ("POST", "/api/dead-letters/replay", "operate"),
    ],
)
async def test_a_role_does_what_it_may_and_no_more(locked: Dashboard, method: str, path: str, needed: str) -> None:
    ranks = list(TOKENS)
    for role, token in TOKENS.items():
        if method == "GET" and "live" in path:
            continue  # a stream has no end
        answer = await request(
            locked.app, method, path, {} if method == "POST" else None, authorization=f"Bearer {token}"
        )
        assert (answer.status == 403) is (ranks.index(role) < ranks.index(needed)), (role, answer.json)


async def test_the_page_gets_the_name_and_the_role_of_its_user(locked: Dashboard, dashboard: Dashboard) -> None:
    mine = await request(locked.app, "GET", "/api/me", authorization=f"Bearer {TOKENS['approve']}")
    open_to_all = await request(dashboard.app, "GET", "/api/me")

    assert mine.json == {"name": "the-approve", "role": "approve", "caller": "the-approve"}
    assert open_to_all.json == {"name": "", "role": "operate", "caller": dashboard.client.user}


async def test_a_wrong_bearer_is_unauthorized_whatever_the_origin(locked: Dashboard) -> None:
    answer = await request(
        locked.app, "POST", "/api/requests", {"team": "crew"}, origin="", authorization="Bearer wrong"
    )

    assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")


async def test_after_ten_wrong_tokens_an_address_must_wait(locked: Dashboard) -> None:
    """The correct token must wait, too, because otherwise an attacker could continue the search."""
    wrong = [(await request(locked.app, "POST", "/login", {"token": f"guess-{n}"})).status for n in range(10)]
    right = await request(locked.app, "POST", "/login", {"token": TOKEN})
    bearer = await request(locked.app, "GET", "/api/me", authorization=f"Bearer {TOKEN}")

    assert wrong == [401] * 10
    assert right.status == bearer.status == 429
    assert 0 < int(right.headers["retry-after"]) <= 61


def test_failures_are_forgotten_after_a_minute_and_addresses_are_bounded() -> None:
    now = [0.0]
    throttle = LoginThrottle(lambda: now[0])
    for _ in range(20):
        throttle.record_failure("a")
    waits = [throttle.wait_of("a"), throttle.wait_of("b")]
    now[0] = 60.0
    for number in range(20_000):
        throttle.record_failure(str(number))

    assert waits == [60.0, 0.0]
    assert throttle.wait_of("a") == 0.0
    assert len(throttle._failures) == 10_000


@pytest.mark.parametrize(
    ("scheme", "host", "plain_http", "status", "is_secure"),
    [
        ("http", "127.0.0.1:8400", False, 200, False),
        ("http", "localhost", False, 200, False),
        ("https", "ops.example", False, 200, True),
        ("http", "ops.example", False, 403, False),
        ("http", "192.0.2.7:8400", False, 403, False),
        ("http", "ops.example", True, 200, False),
    ],
)
async def test_over_plain_http_no_token_is_taken_from_another_machine(
    scheme: str, host: str, plain_http: bool, status: int, is_secure: bool
) -> None:
    settings = Settings(dashboard_plain_http=plain_http)
    app = (await Dashboard.open(Client(MemoryBus()), settings, users=USERS, hosts=["ops.example"])).app

    async def over(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "scheme": scheme}, receive, send)

    answer = await request(over, "POST", "/login", {"token": TOKEN}, host=host, origin=f"{scheme}://{host}")

    assert answer.status == status
    assert ("Secure" in answer.headers.get("set-cookie", "")) is is_secure
    assert ("Max-Age=43200" in answer.headers.get("set-cookie", "")) is (status == 200)


async def test_a_body_that_does_not_arrive_is_given_up(dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that stops sending gets status 408, and its connection is closed."""
    monkeypatch.setattr(responses, "_BODY_TIMEOUT_S", 0.05)

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        parts = iter([{"type": "http.request", "body": b'{"team":', "more_body": True}])

        async def never() -> Any:
            return next(parts, None) or await asyncio.Event().wait()

        await dashboard.app(scope, never, send)

    answer = await request(slow, "POST", "/api/requests", {})

    assert answer.status == 408
    assert "did not arrive" in answer.body.decode()


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
def test_an_address_that_others_can_reach_needs_a_token(host: str, token: str | None, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        check_access(host, token)


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
