"""A refusal of JetStream is reported at once with the broker's text. A permanent refusal ends the process.

Class of fault: an error that JetStream reports as its own failure (5xx) counts as an unavailable broker, so a process
waits for ever. Another fault of this class is that a JetStream with a domain or a required maximum size is unusable.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from support.broker import TIMEOUT_S
from support.cluster import free_ports
from support.configured_server import configured_server
from support.waiting import quickly, until

from pointsman.bus.embedded_server import EmbeddedBroker
from pointsman.bus.jetstream import provisioning
from pointsman.bus.jetstream.bus import JetStreamBus, connect
from pointsman.bus.jetstream.request_reply import ApiUnavailableError
from pointsman.errors import ConfigurationError
from pointsman.settings import Settings
from pointsman.testing.clock import VirtualClock

SOON_S = 4.0  # seconds; a refusal of a server that has just started is retried for one second
ACCOUNTS = """
accounts {
  PLAIN { users: [ { user: plain, password: pw } ] }
  MEMORY { jetstream: { max_mem: 10M, max_file: 0 }, users: [ { user: memory, password: pw } ] }
  BOUNDED { jetstream: { max_mem: 10M, max_file: 240M, max_bytes: true }, users: [ { user: bounded, password: pw } ] }
  OPEN { jetstream: enabled, users: [ { user: open, password: pw } ] }
}
"""
INCURABLE = [
    ("open", {"replicas": 3}, "replicas > 1 not supported in non-clustered mode", "POINTSMAN_REPLICAS=1"),
    ("memory", {}, "insufficient storage resources available", "file storage"),
    ("plain", {}, "JetStream not enabled for account", "enable JetStream for the account"),
]


def settings(port: int, user: str, **others: Any) -> Settings:
    return Settings(url=f"nats://{user}:pw@127.0.0.1:{port}", namespace="own", **others)


# Refusals


@pytest.mark.parametrize(("user", "others", "said", "advice"), INCURABLE, ids=[case[0] for case in INCURABLE])
async def test_a_permanent_fault_is_a_configuration_error(
    user: str, others: Mapping[str, Any], said: str, advice: str, tmp_path: Path
) -> None:
    async with configured_server(tmp_path, ACCOUNTS) as port:
        bus = await connect(settings(port, user, **others), name="test", wait=TIMEOUT_S)
        with capture_logs() as lines:
            making = asyncio.create_task(bus.set_up())
            await until(lambda: lines)
            assert not making.done()  # the first refusal is logged while `set_up` still tries

            with pytest.raises(ConfigurationError) as caught:
                await quickly(making, SOON_S)
        await bus.close()

    [line] = [line for line in lines if line["event"] == "streams_not_ready"]
    assert line["log_level"] == "warning"
    assert said in line["reason"]
    assert advice in line["hint"]
    assert said in str(caught.value)
    assert advice in str(caught.value)


@pytest.mark.parametrize("user", ["open", "plain"])
async def test_a_service_ends_after_the_first_warning(user: str, tmp_path: Path) -> None:
    (tmp_path / "echo.py").write_text(
        "from pointsman import agent\n\n\n@agent(name='echo', description='d')\nasync def echo(task: str) -> str:\n"
        "    return task\n"
    )
    async with configured_server(tmp_path, ACCOUNTS) as port:
        ran = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "pointsman", "worker", "echo.py", cwd=tmp_path, stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "POINTSMAN_URL": f"nats://{user}:pw@127.0.0.1:{port}", "POINTSMAN_REPLICAS": "3",
                 "POINTSMAN_LOG_FORMAT": "json"},
        )  # fmt: skip
        _, error = await asyncio.wait_for(ran.communicate(), 2 * TIMEOUT_S)

    lines = error.decode().splitlines()
    assert ran.returncode == 2, lines
    assert any('"streams_not_ready"' in line and '"warning"' in line for line in lines)
    assert lines[-1].startswith("pointsman: 127.0.0.1:")


@pytest.mark.parametrize(
    ("code", "refusals"), [(10008, 2), (10039, 1)], ids=["temporarily unavailable", "not enabled for account"]
)
async def test_a_refusal_that_passes_ends_nothing(
    code: int, refusals: int, bus: JetStreamBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each refusal takes two seconds, because the server is slow."""
    connection, clock = bus._streams._connection, VirtualClock()
    ask, left = connection.api, refusals
    passing = {"error": {"code": 503, "err_code": code, "description": "unavailable"}}

    async def api(verb: str, payload: Mapping[str, Any] | None = None) -> dict[str, Any]:
        nonlocal left
        left -= 1
        if left >= 0:
            await clock.advance(2.0)
            raise ApiUnavailableError(verb, passing)
        return await ask(verb, payload)

    monkeypatch.setattr(connection, "api", api)
    monkeypatch.setattr(bus._streams, "_clock", clock)
    monkeypatch.setattr(provisioning, "RECONNECT_INTERVAL_S", 0.01)
    with capture_logs() as lines:
        await quickly(bus.set_up(), SOON_S)

    assert [line["event"] for line in lines if line["log_level"] == "warning"] == ["streams_not_ready"]


# Maximum sizes


async def test_an_account_that_demands_maximum_sizes_names_the_setting(tmp_path: Path) -> None:
    async with configured_server(tmp_path, ACCOUNTS) as port:
        bus = await connect(settings(port, "bounded"), name="test", wait=TIMEOUT_S)
        with pytest.raises(ConfigurationError, match=r"max bytes set.*POINTSMAN_STREAM_BYTES"):
            await quickly(bus.set_up(), SOON_S)
        await bus.close()

        large = await connect(settings(port, "bounded", stream_bytes=150_000_000), name="test", wait=TIMEOUT_S)
        with pytest.raises(ConfigurationError, match="POINTSMAN_STREAM_BYTES"):
            await quickly(large.set_up(), SOON_S)
        await large.close()


async def test_every_stream_is_made_with_the_maximum_size(tmp_path: Path) -> None:
    async with configured_server(tmp_path, ACCOUNTS) as port:
        bounded = settings(port, "bounded", stream_bytes=20_000_000, artifacts_bytes=30_000_000)
        bus = await connect(bounded, name="test", wait=TIMEOUT_S)
        await bus.set_up()
        answer = await bus.api("STREAM.LIST", {"offset": 0})
        configs = {stream["config"]["name"]: stream["config"] for stream in answer["streams"]}
        assert await bus.publish("own.log.team.w", b"x" * 2_000_000, {}) == 1
        assert await bus.capacity_problem("work") == ""
        assert await bus.capacity_problem("log") == ""
        await bus.set_up()  # the existing streams fit
        await bus.close()

        other = await connect(settings(port, "bounded"), name="test", wait=TIMEOUT_S)
        await other.set_up()  # existing streams need no setting
        await other.close()

    assert {name: config["max_bytes"] for name, config in configs.items()} == {
        **{f"OWN_{kind}": 20_000_000 for kind in ("REQUESTS", "CONTROLS", "RESULTS", "WORK")},
        "OWN_LOG": 20_000_000,
        "OWN_DEAD": 20_000_000,
        "OWN_DELIVERIES": 20_000_000,
        "OWN_LIMITS": 20_000_000,
        "OBJ_OWN_ARTIFACTS": 30_000_000,
        "KV_OWN_AGENTS": 20_000_000,
    }
    assert {name for name, config in configs.items() if config["discard"] == "old"} == {"OWN_WORK", "OWN_LIMITS"}


async def test_a_bounded_work_stream_is_reported_when_it_is_nearly_full(tmp_path: Path) -> None:
    async with EmbeddedBroker(tmp_path) as server:
        bus = await connect(
            Settings(url=server.url, namespace="own", stream_bytes=2_000_000), name="test", wait=TIMEOUT_S
        )
        await bus.set_up()
        for _ in range(2):
            await bus.publish("own.timer.team.w.wake-1", b"x" * 900_000, {})

        problem = await bus.capacity_problem("work")
        assert re.fullmatch(
            r"OWN_WORK has 18\d{5} bytes of at most 2000000, and drops its oldest messages when full", problem
        )
        await bus.close()


async def test_a_namespace_without_a_bound_fits_a_process_with_one(own_broker: EmbeddedBroker) -> None:
    first = await connect(Settings(url=own_broker.url, namespace="own"), name="test", wait=TIMEOUT_S)
    await first.set_up()
    await first.close()

    second = await connect(
        Settings(url=own_broker.url, namespace="own", stream_bytes=2_000_000), name="test", wait=TIMEOUT_S
    )
    await second.set_up()
    await second.close()


# Domains


@asynccontextmanager
async def hub_and_leaf(folder: Path, *, leaf_jetstream: str = "domain: leaf") -> AsyncIterator[tuple[int, int]]:
    """Yield the ports of a hub with JetStream and of a leaf node that is connected to the hub."""
    [port] = free_ports(1)
    join = f"leafnodes {{ remotes: [ {{ url: nats-leaf://127.0.0.1:{port} }} ] }}"
    async with (
        configured_server(
            folder, f"leafnodes {{ listen: 127.0.0.1:{port} }}", jetstream="domain: hub", name="hub"
        ) as hub,
        configured_server(folder, join, jetstream=leaf_jetstream, name="leaf") as leaf,
    ):
        await until(lambda: "Leafnode connection created" in (folder / "leaf.log").read_text())
        yield hub, leaf


def of_domain(port: int, domain: str | None) -> Settings:
    return Settings(url=f"nats://127.0.0.1:{port}", namespace="own", jetstream_domain=domain)


@pytest.mark.parametrize("leaf_jetstream", ["domain: leaf", ""])
async def test_the_streams_of_a_domain_serve_a_process_at_the_leaf(leaf_jetstream: str, tmp_path: Path) -> None:
    async with hub_and_leaf(tmp_path, leaf_jetstream=leaf_jetstream) as (hub, leaf):
        bus = await connect(of_domain(leaf, "hub"), name="leaf", wait=TIMEOUT_S)
        await bus.set_up()
        assert bus.domain == "hub"
        at_hub = await connect(of_domain(hub, None), name="hub", wait=TIMEOUT_S)
        await at_hub.set_up(create=False)

        await at_hub.publish("own.request.team.anonymous", b"{}", {})
        consumer = await bus.consumer("team", "requests", "own.request.team.anonymous", ack_wait=30)
        [delivery] = await asyncio.wait_for(consumer.take(1), TIMEOUT_S)
        await delivery.ack()
        await until(lambda: settled(at_hub))
        assert await bus.publish("own.log.team.w", b"x" * 2_000_000, {}) == 1
        last = await at_hub.last("log", "own.log.team.w")
        followed = await asyncio.wait_for(anext(bus.follow("log", ["own.log.>"])), TIMEOUT_S)
        read = [stored.body async for stored in bus.read("requests", "own.request.team.anonymous")]
        await bus.registry.cards()
        await consumer.close()
        await at_hub.close()
        await bus.close()

    assert last is not None
    assert last.body == followed.body == b"x" * 2_000_000
    assert read == [b"{}"]


async def settled(bus: JetStreamBus) -> bool:
    depth = await bus.depth("team", "requests")
    return depth is not None and depth.in_flight == 0 and depth.settled_through == 1


async def test_a_domain_that_does_not_answer_is_named(tmp_path: Path) -> None:
    async with configured_server(tmp_path, "", jetstream="domain: hub") as port:
        bus = await connect(of_domain(port, "hbu"), name="test", wait=TIMEOUT_S)
        with capture_logs() as lines:
            making = asyncio.create_task(bus.set_up())
            await until(lambda: any(line["event"] == "streams_not_ready" for line in lines))
            with pytest.raises(ConfigurationError, match=r"no JetStream of the domain 'hbu'.*POINTSMAN_JETSTREAM_DOM"):
                await asyncio.wait_for(making, TIMEOUT_S)
        await bus.close()


async def test_a_leaf_without_jetstream_names_the_setting(tmp_path: Path) -> None:
    async with hub_and_leaf(tmp_path, leaf_jetstream="") as (_, leaf):
        bus = await connect(of_domain(leaf, None), name="test", wait=TIMEOUT_S)
        with pytest.raises(ConfigurationError, match=r"runs without JetStream.*POINTSMAN_JETSTREAM_DOMAIN"):
            await quickly(bus.set_up(), SOON_S)
        await bus.close()


async def test_a_domain_whose_hub_is_away_for_a_moment_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The hub of this test starts as slowly as a busy machine makes it start.
    monkeypatch.setattr(provisioning, "_DOMAIN_TIMEOUT_S", 2 * TIMEOUT_S)
    [port, hub] = free_ports(2)
    join = f"leafnodes {{ remotes: [ {{ url: nats-leaf://127.0.0.1:{port} }} ], reconnect: 1 }}"
    async with configured_server(tmp_path, join, jetstream="", name="leaf") as leaf:
        bus = await connect(of_domain(leaf, "hub"), name="test", wait=TIMEOUT_S)
        making = asyncio.create_task(bus.set_up())
        await asyncio.wait({making}, timeout=0.5)
        assert not making.done()

        config = f"leafnodes {{ listen: 127.0.0.1:{port} }}"
        async with configured_server(tmp_path, config, port=hub, jetstream="domain: hub", name="hub"):
            await asyncio.wait_for(making, 2 * TIMEOUT_S)
            await bus.close()


# Commands


async def command(*arguments: str, folder: Path, **environment: str) -> tuple[int | None, str, str]:
    ran = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pointsman", *arguments, cwd=folder, env={**os.environ, **environment},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, error = await asyncio.wait_for(ran.communicate(), 60)
    return ran.returncode, out.decode(), error.decode()


async def test_doctor_names_the_domain_that_it_looks_at(tmp_path: Path) -> None:
    async with hub_and_leaf(tmp_path) as (_, leaf):
        for port, domain in ((leaf, "hub"), (leaf, None)):
            bus = await connect(of_domain(port, domain), name="test", wait=TIMEOUT_S)
            await bus.set_up()
            await bus.close()
        at_leaf = {"POINTSMAN_URL": f"nats://127.0.0.1:{leaf}", "POINTSMAN_NAMESPACE": "own"}

        _, own, _ = await command("doctor", folder=tmp_path, **at_leaf)
        _, chosen, _ = await command("doctor", folder=tmp_path, **at_leaf, POINTSMAN_JETSTREAM_DOMAIN="hub")
        _, absent, _ = await command(
            "doctor", folder=tmp_path, **{**at_leaf, "POINTSMAN_NAMESPACE": "other"}, POINTSMAN_JETSTREAM_DOMAIN="hub"
        )

    assert "streams of 'own' match, in the JetStream domain 'leaf' of this server" in own
    assert "streams of 'own' match, in the JetStream domain 'hub'\n" in chosen
    assert "there is no namespace 'other' at" in absent
    assert "in the JetStream domain 'hub'" in absent


@pytest.mark.parametrize(
    ("user", "environment", "expected"),
    [
        ("open", {"POINTSMAN_REPLICAS": "3"}, "POINTSMAN_REPLICAS=3 needs a cluster"),
        ("bounded", {}, "set POINTSMAN_STREAM_BYTES"),
        ("memory", {}, "no file storage"),
        ("plain", {}, "JetStream not enabled for account"),
    ],
)
async def test_doctor_names_what_keeps_services_from_starting(
    user: str, environment: dict[str, str], expected: str, tmp_path: Path
) -> None:
    async with configured_server(tmp_path, ACCOUNTS) as port:
        code, out, error = await command(
            "doctor", folder=tmp_path, POINTSMAN_URL=f"nats://{user}:pw@127.0.0.1:{port}", **environment
        )

    assert code == 1, error
    assert expected in out


async def test_own_broker_ignores_the_settings_of_another_broker(tmp_path: Path) -> None:
    """`demo` starts a server without TLS, login and domains. It ignores settings for another server."""
    code, out, error = await command(
        "demo", folder=tmp_path, POINTSMAN_URL="tls://elsewhere.example", POINTSMAN_TLS_CA="no-such-file",
        POINTSMAN_CREDENTIALS="no-such-file", POINTSMAN_JETSTREAM_DOMAIN="hub", POINTSMAN_REPLICAS="3",
        POINTSMAN_USER="ada", POINTSMAN_MODEL="offline",
    )  # fmt: skip

    assert code == 0, (out[-500:], error[-2000:])
