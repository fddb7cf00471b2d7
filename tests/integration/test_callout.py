"""`pointsman callout` turns API keys and OIDC tokens into users with the rights of their grants."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from support import ready
from support.configured_server import configured_server
from support.grants import allowed, connected, environment_of, server_config, settings_of
from support.issuer import CONFIGURATION, Issuer, issuing, new_key
from support.processes import Service
from support.waiting import until

from pointsman.errors import ConfigurationError
from pointsman.grants.callout import AuthCallout, serve_callout
from pointsman.grants.folder import GrantFolder
from pointsman.grants.permissions import Grant, GrantRole
from pointsman.grants.policy import Policy, new_api_key
from pointsman.settings import Settings

POLICY = """
[[keys]]
name = "shop"
role = "caller"
teams = ["crew"]
namespace = "own"
sha256 = "{digest}"

[[issuers]]
issuer = "{issuer}"
audience = "pointsman"

[[issuers.rules]]
claim = "groups"
value = "agents"
role = "worker"
agents = ["echo"]
namespace = "own"
"""


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with issuing() as made:
        yield made


def token_of(issuer: Issuer, **claims: Any) -> str:
    return issuer.token(**{"groups": ["agents"], **claims})


@dataclass
class Place:
    url: str
    api_key: str

    def login(self, token: str, user: str = "shop") -> Settings:
        edge = {"inbox_prefix": f"_INBOX.{user}", "jetstream_domain": "edge"}
        return Settings(url=self.url, token=token, namespace="own", request_timeout=2.0, **edge)


@asynccontextmanager
async def running(folder: Path, issuer: Issuer) -> AsyncIterator[Place]:
    """Run a server that authenticates with `pointsman callout`."""
    grants = GrantFolder.create(folder / "grants", account="APP", namespaces=["own"], jwt=False, callout=True)
    grants.add(Grant(GrantRole.SUPERVISOR, "boss", teams=("*",)))
    api_key, digest = new_api_key()
    (folder / "policy.toml").write_text(POLICY.format(digest=digest, issuer=issuer.url))
    users = [user.name for user in grants.content.users]
    decisions = AuthCallout(Policy.load(folder / "policy.toml"), grants.callout_key(), grants.content.account, users)
    async with configured_server(folder, server_config(grants)) as port:
        url = f"nats://127.0.0.1:{port}"
        async with serve_callout(settings_of(grants, "callout", port), decisions):
            yield Place(url, api_key)


async def test_api_key_becomes_a_caller_of_its_team(tmp_path: Path, issuer: Issuer) -> None:
    async with running(tmp_path, issuer) as place:
        login = place.login(place.api_key)

        assert await allowed(login, "own.request.crew.shop")
        assert not await allowed(login, "own.request.crew.ada")
        assert not await allowed(login, "own.request.other.shop")
        assert not await allowed(login, "own.limit.x")


async def test_oidc_token_becomes_a_worker_and_the_keys_are_cached(tmp_path: Path, issuer: Issuer) -> None:
    async with running(tmp_path, issuer) as place:
        login = place.login(token_of(issuer), "ada")

        assert await allowed(login, "own.limit.x")
        assert not await allowed(login, "own.request.crew.ada")
        assert await allowed(place.login(token_of(issuer, sub="eve"), "eve"), "own.limit.x")

    assert issuer.asked == [CONFIGURATION, "/keys"]


async def test_expired_oidc_token_ends_its_connection(tmp_path: Path, issuer: Issuer) -> None:
    async with (
        running(tmp_path, issuer) as place,
        connected(place.login(token_of(issuer, exp=int(time.time()) + 2), "ada")) as connection,
    ):
        async with asyncio.timeout(20):
            while connection.connected:
                await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"exp": 1}, "Signature has expired"),
        ({"aud": "another"}, "Audience doesn't match"),
        ({"groups": ["guests"]}, "no rule of the policy matches"),
        ({"sub": "a.>"}, "the claim sub is 'a.>'"),
        ({"sub": "shop"}, "the token names the user 'shop', but an API key"),
        ({"sub": "boss"}, "the token names the user 'boss', but an API key or the configuration"),
        (
            {"iss": "http://127.0.0.1:9"},
            "neither an API key of the policy nor an OIDC token of an issuer in the policy",
        ),
        ({"key": "another"}, "Signature verification failed"),
    ],
)
async def test_token_that_does_not_fit_is_refused(
    claims: dict[str, Any], reason: str, tmp_path: Path, issuer: Issuer
) -> None:
    if "key" in claims:
        claims = {"key": new_key()}
    async with running(tmp_path, issuer) as place:
        with capture_logs() as lines, pytest.raises(ConfigurationError, match="refuses the connection"):
            async with connected(place.login(token_of(issuer, **claims))):
                pass

    assert reason in next(line["reason"] for line in lines if line["event"] == "login_refused")


@pytest.mark.parametrize("token", ["pmk_guess", "", "a.b.c"])
async def test_unknown_key_is_refused(token: str, tmp_path: Path, issuer: Issuer) -> None:
    async with running(tmp_path, issuer) as place:
        with pytest.raises(ConfigurationError, match="refuses the connection"):
            async with connected(place.login(token)):
                pass


async def test_command_serves_until_a_signal(tmp_path: Path, issuer: Issuer) -> None:
    grants = GrantFolder.create(tmp_path / "grants", account="APP", namespaces=["own"], jwt=False, callout=True)
    api_key, digest = new_api_key()
    (tmp_path / "policy.toml").write_text(POLICY.format(digest=digest, issuer=issuer.url))
    async with configured_server(tmp_path, server_config(grants)) as port:
        url = f"nats://127.0.0.1:{port}"
        environment = {**os.environ, **environment_of(grants, "callout"), "POINTSMAN_URL": url}
        arguments = ["-m", "pointsman", "callout", "policy.toml", "--folder", "grants", "--with-parent"]
        with (tmp_path / "callout.log").open("wb") as log:
            process = await ready.start(arguments, log, log, environment=environment, folder=tmp_path)
        service = Service("callout", process, tmp_path / "callout.log")
        try:
            await until(lambda: "callout_started" in service.text, seconds=40)
            assert await allowed(Place(url, api_key).login(api_key), "own.request.crew.shop")
        finally:
            code = await service.stop()

    assert code == 0
    assert api_key not in service.text


def test_keys_and_users_of_one_name_are_refused(tmp_path: Path) -> None:
    """Users with the same name have the same inbox prefix, so each would receive the other user's answers."""
    grants = GrantFolder.create(tmp_path / "grants", account="APP", namespaces=["own"], jwt=False, callout=True)
    key = '[[keys]]\nname = "shop"\nrole = "caller"\nteams = ["{team}"]\nsha256 = "{digest}"\n'
    same, other = key.format(team="a", digest="0" * 64), key.format(team="b", digest="1" * 64)
    (tmp_path / "twice.toml").write_text(same + other)
    (tmp_path / "once.toml").write_text(same + same.replace("0000", "1111"))

    with pytest.raises(ConfigurationError, match="two API keys named 'shop' with different rights"):
        Policy.load(tmp_path / "twice.toml")
    with pytest.raises(ConfigurationError, match="has the name of a user"):
        AuthCallout(Policy.load(tmp_path / "once.toml"), grants.callout_key(), "APP", ["shop"])
