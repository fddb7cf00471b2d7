"""Users of each role try every subject and request that their rights do not include. No data changes.

All attacks run with users of a server configuration and with JWTs.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from unittest.mock import patch

import pytest
import pytest_asyncio
from support.attacks import (
    Attacker,
    Names,
    borrowed_acknowledgements,
    foreign_publishes,
    foreign_subscriptions,
    header_attacks,
    matcher,
    message_subjects,
    reply_attacks,
    snapshot,
    targets,
)
from support.configured_server import configured_server
from support.grants import connected, server_config, settings_of
from support.permission_server import Rights, permission_server
from support.waiting import until

from pointsman.bus.jetstream.connection import NatsConnection
from pointsman.bus.jetstream.key_value import ensure_bucket
from pointsman.bus.jetstream.protocol import WireMessage, error_code, header_bytes
from pointsman.bus.jetstream.reader_names import READER_SLOTS, reader_name
from pointsman.bus.jetstream.stream_config import stream_configs
from pointsman.grants.accounts import is_covered
from pointsman.grants.folder import GrantFolder
from pointsman.grants.permissions import (
    ACTIONS,
    TRUSTED_ROLES,
    Grant,
    GrantRole,
    Permissions,
    inbox_prefix,
    permissions,
)
from pointsman.settings import Settings
from pointsman_schemas.subjects import Subjects

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]
NS = "own"
USERS = {
    "builder": Grant(GrantRole.PROVISIONER, "builder"),
    "boss": Grant(GrantRole.SUPERVISOR, "boss", ("crew",)),
    "rival-boss": Grant(GrantRole.SUPERVISOR, "rival-boss", ("rivals",)),
    "shop": Grant(GrantRole.CALLER, "shop", ("crew",), (), ("cancel",)),
    "rival": Grant(GrantRole.CALLER, "rival", ("rivals",)),
    "echo-1": Grant(GrantRole.WORKER, "echo-1", (), ("echo",)),
    "spy-1": Grant(GrantRole.WORKER, "spy-1", (), ("spy",)),
    "door": Grant(GrantRole.GATEWAY, "door", ("crew",), (), ("cancel", "approve")),
    "eye": Grant(GrantRole.OBSERVER, "eye"),
    "board": Grant(GrantRole.DASHBOARD, "board", ("crew",), (), ("approve",)),
    "ops": Grant(GrantRole.OPERATOR, "ops", ("*",), (), ACTIONS[GrantRole.OPERATOR]),
    "sender": Grant(GrantRole.WEBHOOKS, "sender"),
}
KNOWN_USERS = ["shop", "rival", "ops", "boss", "echo-1"]  # the names that the attackers use
ATTACKERS = ["shop", "echo-1", "door", "eye", "board", "boss", "ops", "builder", "sender"]
EDGE_ATTACKERS = [name for name in ATTACKERS if USERS[name].role not in TRUSTED_ROLES]
DURABLES = [
    (f"{NS.upper()}_REQUESTS", "request-{team}", "own.request.{team}.*"),
    (f"{NS.upper()}_CONTROLS", "control-{team}", "own.control.{team}.>"),
    (f"{NS.upper()}_RESULTS", "result-{team}", "own.result.{team}.>"),
    (f"{NS.upper()}_WORK", "timer-{team}", "own.timer.{team}.>"),
    (f"{NS.upper()}_WORK", "agent-{agent}", "own.handoff.{agent}.>"),
]
DURABLES_OF_WEBHOOKS = [
    (f"{NS.upper()}_LOG", "webhook-outcomes", "own.outcome.*.*"),
    (f"{NS.upper()}_LOG", "webhook-questions", "own.question.*.*.*"),
    (f"{NS.upper()}_DEAD", "webhook-dead-letters", "own.dead.*.*.*"),
    (f"{NS.upper()}_DELIVERIES", "webhook-deliveries", "own.delivery.*.*.*.*"),
]


@dataclass
class World:
    """A namespace in which each kind of message is stored, and the users with their grants."""

    grants: GrantFolder
    port: int
    names: Names
    observer: NatsConnection
    builder: NatsConnection

    def settings(self, user: str) -> Settings:
        return settings_of(self.grants, user, self.port)

    async def state(self) -> str:
        return json.dumps(await snapshot(self.observer, self.builder, self.names), sort_keys=True)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=[False, True], ids=["config", "jwt"])
async def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """Return one world for all tests: each test proves that the attacks changed nothing."""
    async with world(tmp_path_factory.mktemp("grants"), jwt=request.param) as made:
        yield made


@asynccontextmanager
async def world(folder: Path, *, jwt: bool) -> AsyncIterator[World]:
    grants = GrantFolder.create(
        folder / "grants", account="APP", namespaces=[NS], jwt=jwt, resolver=str(folder / "jwt")
    )
    # A cheap hash, because the server checks a hash at each connection.
    with patch("pointsman.grants.folder._BCRYPT_ROUNDS", 4):
        for grant in USERS.values():
            grants.add(grant)
    async with configured_server(folder, server_config(grants)) as port, AsyncExitStack() as stack:
        configs = stream_configs(Subjects(NS), Settings(namespace=NS))
        teams, agents = ("crew", "rivals"), ("echo", "spy")
        durables = [
            (stream, name.format(team=one, agent=one), filter.format(team=one, agent=one))
            for stream, name, filter in DURABLES
            for one in (agents if "agent" in name else teams)
        ]
        durables += DURABLES_OF_WEBHOOKS
        streams = {config["name"]: config["subjects"] for config in configs}
        for bucket in Names(NS, (), (), (), "", {}, ()).key_values:
            streams[f"KV_{bucket}"] = [f"$KV.{bucket}.>"]
        names = Names(NS, teams, agents, KNOWN_USERS, "wf_1", streams, durables)
        connections = {
            user: await stack.enter_async_context(connected(settings_of(grants, user, port))) for user in USERS
        }
        for config in configs:
            answer = await connections["builder"].api(f"STREAM.CREATE.{config['name']}", config)
            assert not error_code(answer), answer
        for bucket in names.key_values:
            await ensure_bucket(connections["builder"], bucket, replicas=1, max_bytes=None)
        for stream, name, filter in durables:
            config = {"name": name, "durable_name": name, "filter_subject": filter, "ack_policy": "explicit"}
            order = {"stream_name": stream, "config": config}
            answer = await connections["builder"].api(f"CONSUMER.CREATE.{stream}.{name}.{filter}", order)
            assert not error_code(answer), answer
        await store_every_kind(names, connections)
        yield World(grants, port, names, connections["eye"], connections["builder"])


async def store_every_kind(names: Names, connections: dict[str, NatsConnection]) -> None:
    """Publish a message on each subject as an allowed user. Outcomes and events have the empty body of a claim."""
    stored = 0
    may_publish = {user: matcher(permissions(grant, NS).publish) for user, grant in USERS.items() if user != "ops"}
    for subject in message_subjects(names):
        if ".handoff.echo." in subject:  # leave the queue of the attacking worker empty
            continue
        if subject.startswith((f"{NS}.schedule.", f"{NS}.handed.", f"{NS}.cancelled.", f"{NS}.delta.", "_", "$SRV")):
            continue
        for user, covered in may_publish.items():
            if covered(subject):
                body = b"" if ".outcome." in subject or ".event." in subject else b'{"own": 1}'
                answer = json.loads((await connections[user].request(subject, body)()).data)
                assert "error" not in answer, (subject, answer)
                stored += 1
                break
    assert stored > 60


async def test_attackers_and_grants_agree_about_covered_subjects() -> None:
    names = Names(NS, ("crew", "rivals"), ("echo", "spy"), KNOWN_USERS, "wf_1", {}, [])
    subjects = [
        *islice(message_subjects(names), 0, None, 17),
        ">",
        f"{NS}.>",
        "*.>",
        "_INBOX.*.>",
        f"{NS}.log.>",
        "$JS.API.INFO",
        "$JS.x",
    ]
    for grant in USERS.values():
        rights = permissions(grant, NS)
        for patterns in (rights.publish, rights.subscribe):
            found = [bool(matcher(patterns)(each)) for each in subjects]
            assert found == [is_covered(each, patterns) for each in subjects]


async def test_every_foreign_subject_and_request_is_refused(place: World) -> None:
    before = await place.state()
    for user in ATTACKERS:
        rights = permissions(USERS[user], NS)
        async with connected(place.settings(user)) as connection:
            attacker = Attacker(connection)
            attacks = foreign_publishes(place.names, rights)
            published = await attacker.publish(attacks)
            subscribed = await attacker.subscribe(foreign_subscriptions(place.names, rights))

        assert len(attacks) > 1000
        assert (user, [(each.what, each.subject) for each in published]) == (user, [])
        assert (user, subscribed) == (user, [])
    assert await place.state() == before


async def test_headers_on_own_subjects_change_nothing_of_others(place: World) -> None:
    """Send rollups, which would delete messages, and schedules, which would publish a handoff."""
    before = await place.state()
    for user in EDGE_ATTACKERS:
        attacks = header_attacks(place.names, permissions(USERS[user], NS))
        async with connected(place.settings(user)) as connection:
            answers = [
                await connection.request(each.subject, each.body, headers=header_bytes(each.headers))()
                for each in attacks
            ]

        assert bool(attacks) is (user != "eye")
        assert (user, [each.data for each in answers if b'"error"' not in each.data]) == (user, [])
    assert await place.state() == before


async def test_no_acknowledgement_takes_a_message_from_the_consumer_of_another(place: World) -> None:
    """Request the next message of a foreign consumer, with an own consumer in the last tokens of the subject."""
    before = await place.state()
    for user in ATTACKERS:
        attacks = borrowed_acknowledgements(place.names, permissions(USERS[user], NS))
        received: list[WireMessage] = []
        inbox = f"{inbox_prefix(USERS[user])}.stolen"
        async with connected(place.settings(user)) as connection:
            await connection.subscribe(inbox, received.append)
            await Attacker(connection).publish([replace(each, reply=inbox) for each in attacks])
            await settle(place)
            await connection.flush()

        assert (user, [each.subject for each in received if each.data]) == (user, [])
    assert await place.state() == before


async def test_answers_of_the_broker_go_to_no_subject_of_others(place: World) -> None:
    """Send own requests with subjects of other users as reply subjects."""
    before = await place.state()
    for user in EDGE_ATTACKERS:
        attacks = reply_attacks(place.names, own_requests(permissions(USERS[user], NS)))
        async with connected(place.settings(user)) as connection:
            refused = Attacker(connection)
            accepted = await refused.publish(attacks)

        assert len(accepted) == len(attacks) > 500
        await settle(place)
        assert (user, await place.state() == before) == (user, True)


async def test_the_same_answers_delete_a_stream_if_there_is_one_account(tmp_path: Path) -> None:
    """The edge account exists because the broker does not check reply subjects. If it does, this test fails."""
    rights = Rights(publish=["$JS.API.DIRECT.GET.S.own.a"], subscribe=["_INBOX.ada.>"])
    async with permission_server(tmp_path, {"root": None, "ada": rights}) as server:
        root = Settings(url=server.url("root"))
        ada = Settings(url=server.url("ada"), inbox_prefix="_INBOX.ada")
        async with connected(root) as all_rights, connected(ada) as reader:
            await all_rights.api("STREAM.CREATE.S", {"name": "S", "subjects": ["own.*"], "allow_direct": True})
            await reader.send("$JS.API.DIRECT.GET.S.own.a", reply="$JS.API.STREAM.DELETE.S")
            await reader.flush()

            async def deleted() -> bool:
                return "error" in await all_rights.api("STREAM.INFO.S")

            await until(deleted)


async def test_own_consumers_deliver_to_no_subject_of_others(place: World) -> None:
    """Create consumers with deliver subjects of other users, which the broker does not check."""
    before = await place.state()
    wanted = [each for each in targets(place.names) if each.startswith("$JS.API.STREAM.")]
    wanted += [f"{NS}.handoff.spy.crew.wf_1.t1.7", f"{NS}.log.crew.wf_1", f"{NS}.request.rivals.rival"]
    wanted += [f"$KV.{NS.upper()}_AGENTS.spy.1", f"{NS}.handed.crew.1.request.crew.shop", "_TRUSTED.boss.x"]
    received: list[object] = []
    async with connected(place.settings("boss")) as boss:
        await boss.subscribe(f"{NS}.handed.>", received.append)
        await boss.subscribe("_TRUSTED.boss.x", received.append)
        for user in EDGE_ATTACKERS:
            names = [reader_name(f"_INBOX.{user}", slot) for slot in range(READER_SLOTS)]
            stream, filter = FILTERS[user]
            async with connected(place.settings(user)) as connection:
                for start in range(0, len(wanted), READER_SLOTS):
                    chosen = list(zip(names, wanted[start : start + READER_SLOTS], strict=False))
                    for name, target in chosen:
                        config: dict[str, object] = {
                            "name": name,
                            "filter_subject": filter,
                            "deliver_subject": target,
                        }
                        config |= {"ack_policy": "none", "idle_heartbeat": 100_000_000}
                        order = {"stream_name": stream, "config": config}
                        await connection.api(f"CONSUMER.CREATE.{stream}.{name}.{filter}", order)
                    await asyncio.sleep(0.3)  # three heartbeats, each with an empty body
                    for name, _ in chosen:
                        await connection.api(f"CONSUMER.DELETE.{stream}.{name}")
            await settle(place)
            assert (user, await place.state() == before) == (user, True)
            forwarded = [each for each in received if getattr(each, "subject", "").startswith(f"{NS}.handed.")]
            assert forwarded == []


FILTERS = {
    "shop": (f"{NS.upper()}_RESULTS", f"{NS}.event.crew.>"),
    "door": (f"{NS.upper()}_RESULTS", f"{NS}.event.crew.>"),
    "echo-1": (f"{NS.upper()}_RESULTS", f"{NS}.step.echo.>"),
    "eye": (f"{NS.upper()}_RESULTS", ">"),
    "board": (f"{NS.upper()}_RESULTS", ">"),
    "sender": (f"{NS.upper()}_DELIVERIES", f"{NS}.receipt.>"),
}


def own_requests(rights: Permissions) -> list[tuple[str, bytes]]:
    """Return allowed requests of each kind whose answers have an empty body."""
    found = list[tuple[str, bytes]]()
    for right in rights.publish:
        subject = right.replace("*", "none").replace(">", "none")
        if ".DIRECT.GET." in right and len(found) < 6:
            found.append((subject, b""))
        elif ".MSG.NEXT." in right:
            found.append((right, b'{"batch": 1, "no_wait": true}'))
        elif right.startswith(f"$JS.ACK.{NS.upper()}_"):
            found.append((right.replace(">", "1.1.1.1.0"), b"+ACK"))
    return found


async def settle(place: World) -> None:
    """Return when the broker has processed all earlier messages, because its API answers requests in order."""
    for stream in place.names.streams:
        await place.builder.api(f"STREAM.INFO.{stream}")
    await asyncio.sleep(0.2)


async def test_inbox_of_another_user_stays_private(place: World) -> None:
    heard: list[object] = []
    async with AsyncExitStack() as stack:
        for spy in ("echo-1", "rival", "eye", "board", "door", "ops", "rival-boss"):
            connection = await stack.enter_async_context(connected(place.settings(spy)))
            for subject in (">", "_INBOX.>", "_INBOX.shop.>", "_INBOX.*.*", "_TRUSTED.boss.>", "*.shop.>"):
                await connection.subscribe(subject, heard.append)
            await connection.flush()
        shop = await stack.enter_async_context(connected(place.settings("shop")))
        boss = await stack.enter_async_context(connected(place.settings("boss")))
        await shop.request(f"{NS}.request.crew.shop", b"{}")()
        await boss.request(f"{NS}.log.crew.wf_2", b"{}")()
        await boss.send("_INBOX.shop.outcome", b"secret")
        await boss.flush()
        await shop.flush()

    assert heard == []
