"""`pointsman grants` creates users that nats-server accepts. They have exactly the rights of their role."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from support.configured_server import configured_server, pid_of
from support.grants import allowed, connected, server_config, settings_of
from support.waiting import until

from pointsman.bus.jetstream.bus import connect
from pointsman.cli.support.environment_checks import check_rights
from pointsman.errors import ConfigurationError
from pointsman.grants.folder import GrantFolder
from pointsman.grants.permissions import Grant, GrantRole
from pointsman.grants.probe import possible_grants, refused_rights
from pointsman.grants.push import push_accounts
from pointsman.settings import Settings

MODES = pytest.mark.parametrize("jwt", [False, True], ids=["config", "jwt"])


def grants_of(folder: Path, *, jwt: bool) -> GrantFolder:
    grants = GrantFolder.create(
        folder / "grants", account="APP", namespaces=["own"], jwt=jwt, resolver=str(folder / "jwt")
    )
    grants.add(Grant(GrantRole.PROVISIONER, "builder"))
    grants.add(Grant(GrantRole.CALLER, "shop", teams=("crew",)))
    grants.add(Grant(GrantRole.WORKER, "echo-1", agents=("echo",)))
    return grants


@MODES
async def test_a_user_may_publish_what_the_grant_says_and_no_more(jwt: bool, tmp_path: Path) -> None:
    grants = grants_of(tmp_path, jwt=jwt)
    async with configured_server(tmp_path, server_config(grants)) as port:
        shop, echo = (settings_of(grants, name, port) for name in ("shop", "echo-1"))
        found = {
            (settings.user, subject): await allowed(settings, subject)
            for settings in (shop, echo)
            for subject in ("own.request.crew.shop", "own.request.crew.other", "own.limit.x", "$JS.API.INFO")
        }

    assert {key for key, value in found.items() if value} == {
        ("shop", "own.request.crew.shop"),
        ("echo-1", "own.limit.x"),
    }


@MODES
async def test_a_rotated_secret_replaces_the_old_one(jwt: bool, tmp_path: Path) -> None:
    grants = grants_of(tmp_path, jwt=jwt)
    async with configured_server(tmp_path, server_config(grants)) as port:
        old = tmp_path / "old.creds"
        if jwt:
            old.write_bytes((grants.path / "users" / "shop.creds").read_bytes())
        before = settings_of(grants, "shop", port).model_dump(exclude_unset=True)
        before |= {"credentials": str(old)} if jwt else {}
        grants.rotate("shop")
        await publish_change(grants, tmp_path, port)

        async def refused() -> bool:
            try:
                async with connected(Settings(**before)):
                    return False
            except ConfigurationError:
                return True

        await until(refused)
        assert await allowed(settings_of(grants, "shop", port), "own.request.crew.shop")


@MODES
async def test_a_revoked_user_is_disconnected_and_refused(jwt: bool, tmp_path: Path) -> None:
    grants = grants_of(tmp_path, jwt=jwt)
    async with configured_server(tmp_path, server_config(grants)) as port:
        shop = settings_of(grants, "shop", port)
        kept = tmp_path / "kept.creds"
        if jwt:
            kept.write_bytes((grants.path / "users" / "shop.creds").read_bytes())
            shop = shop.model_copy(update={"credentials": str(kept)})
        async with connected(shop) as connection:
            grants.revoke("shop")
            await publish_change(grants, tmp_path, port)
            await until(lambda: not connection.connected)
        with pytest.raises(ConfigurationError, match="refuses the connection of user 'shop'"):
            async with connected(shop):
                pass
        assert await allowed(settings_of(grants, "echo-1", port), "own.limit.x")


async def publish_change(grants: GrantFolder, folder: Path, port: int) -> None:
    if grants.content.mode == "jwt":
        assert await push_accounts(grants, f"nats://127.0.0.1:{port}") == 2
    else:
        os.kill(pid_of(folder), signal.SIGHUP)
        await asyncio.sleep(0)


def test_files_with_secrets_are_for_their_owner_only(tmp_path: Path) -> None:
    grants = grants_of(tmp_path, jwt=True)

    private = [*(grants.path / "keys").iterdir(), *(grants.path / "users").iterdir()]
    assert len(private) == 4 + 3 + 3 * 2 + 1
    assert {path.stat().st_mode & 0o777 for path in private} == {0o600}
    assert "seed" not in (grants.path / "grants.json").read_text()


@MODES
async def test_doctor_names_each_missing_right_of_the_role(jwt: bool, tmp_path: Path) -> None:
    grants = grants_of(tmp_path, jwt=jwt)
    grants.add(Grant(GrantRole.OPERATOR, "ops", ("*",)))
    async with configured_server(tmp_path, server_config(grants)) as port:
        shop = settings_of(grants, "shop", port)
        own = Grant(GrantRole.CALLER, "shop", ("crew",))
        wider = Grant(GrantRole.CALLER, "shop", ("crew", "lab"), (), ("cancel",))

        complete = await refused_rights(shop, own)
        missing = await refused_rights(shop, wider)
        found = possible_grants(shop, teams=["crew"], agents=[])
        guessed = [
            await check_rights(settings_of(grants, name, port), team, None, ())
            for name, team in (("shop", "crew"), ("shop", None), ("ops", None))
        ]

    assert complete == []
    assert ("publish on", "own.request.lab.shop") in missing
    assert ("publish on", "own.control.crew.*.cancel.shop.*") in missing
    assert ("subscribe to", "own.outcome.lab.*") in missing
    assert {subject for _, subject in missing if "crew" in subject} == {"own.control.crew.*.cancel.shop.*"}
    assert own in found
    assert [(role, [(check.ok, check.finding) for check in checks]) for role, checks in guessed] == [
        (GrantRole.CALLER, [(True, "shop, as caller, has every right of its role")]),
        (None, [(False, "no role fits the user of this process")]),
        (GrantRole.OPERATOR, [(True, "ops, as operator, has every right of its role")]),
    ]
    assert GrantRole.SUPERVISOR not in {each.role for each in found}  # a supervisor has another inbox prefix


@MODES
async def test_reader_of_the_edge_takes_more_than_the_broker_sends_at_once(jwt: bool, tmp_path: Path) -> None:
    """After about 32 messages the broker waits for flow control, which must pass the imports of the account."""
    grants = grants_of(tmp_path, jwt=jwt)
    grants.add(Grant(GrantRole.OBSERVER, "eye"))
    grants.add(Grant(GrantRole.OPERATOR, "ops", ("*",), (), ("import",)))
    async with configured_server(tmp_path, server_config(grants)) as port:
        async with connected(settings_of(grants, "builder", port)) as builder:
            stream = {"name": "OWN_LOG", "subjects": ["own.log.*.*"], "allow_direct": True}
            assert "error" not in await builder.api("STREAM.CREATE.OWN_LOG", stream)
        async with connected(settings_of(grants, "ops", port)) as ops:
            for _ in range(0, 600, 100):
                await asyncio.gather(*(ops.request("own.log.crew.w", b"x" * 20_000)() for _ in range(100)))
        eye = await connect(settings_of(grants, "eye", port), name="eye", wait=10.0, leader_reads=False)
        with capture_logs() as lines:
            sequences = [stored.sequence async for stored in eye.read("log", "own.log.crew.w")]
            following = eye.follow("log", ["own.log.>"], after=590)
            followed = [(await asyncio.wait_for(anext(following), 10.0)).sequence for _ in range(10)]
        await eye.close()

    assert sequences == list(range(1, 601))
    assert followed == list(range(591, 601))
    assert lines == []
