"""A refusal by the broker ends the request that it refuses, and is reported as a refusal.

Class of fault: the broker reports a refused subject as an asynchronous error of the connection, and the request gets
no answer. So the caller gets a time-out, which looks like an unavailable broker.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from support.broker import TIMEOUT_S
from support.configured_server import configured_server, pid_of
from support.waiting import quickly, until

from pointsman.bus.jetstream.bus import JetStreamBus, connect
from pointsman.errors import BusUnavailableError, ConfigurationError, PermissionDeniedError
from pointsman.ports.bus import Service, StoredMessage
from pointsman.settings import Settings

AT_ONCE = 3.0  # seconds; a time-out of the broker takes five
NAMESPACE = "own"


def users(**permissions: str) -> str:
    """Return the block `authorization` with two users: `root` may do everything, `ada` has denied subjects."""
    rules = " ".join(f"{what}: {{ deny: {denied} }}" for what, denied in permissions.items())
    return f"""
authorization {{ users: [
  {{ user: root, password: pw }}
  {{ user: ada, password: pw, permissions: {{ {rules} }} }}
] }}
"""


def settings(port: int, user: str = "ada", **others: object) -> Settings:
    return Settings(url=f"nats://{user}:pw@127.0.0.1:{port}", namespace=NAMESPACE, **others)


@asynccontextmanager
async def denying(folder: Path, **permissions: str) -> AsyncIterator[tuple[JetStreamBus, int]]:
    """Yield the bus of `ada` on a server that denies subjects. `root` has created the namespace."""
    async with configured_server(folder, users(**permissions)) as port:
        root = await connect(settings(port, "root"), name="root", wait=TIMEOUT_S)
        await root.set_up()
        await root.publish("own.request.team.anonymous", b"{}", {})
        await root.close()
        bus = await connect(settings(port), name="test", wait=TIMEOUT_S)
        yield bus, port
        await bus.close()


async def drain(source: AsyncIterator[object]) -> None:
    async for _ in source:
        pass


async def drain_many(bus: JetStreamBus) -> None:
    """Follow more than 2 MB, after which the broker waits for flow control."""
    await asyncio.gather(*(bus.publish("own.log.team.w", b"x" * 100_000, {}) for _ in range(40)))
    await drain(bus.follow("log", ["own.log.>"]))


async def take(bus: JetStreamBus) -> None:
    consumer = await bus.consumer("team", "requests", "own.request.team.anonymous", ack_wait=30)
    await consumer.take(1)


async def acknowledge(bus: JetStreamBus) -> None:
    consumer = await bus.consumer("team", "requests", "own.request.team.anonymous", ack_wait=30)
    [delivery] = await consumer.take(1)
    await delivery.ack()
    await consumer.take(1)


async def listen(bus: JetStreamBus, subject: str = "own.event.>") -> None:
    async def heard(message: StoredMessage) -> None:
        """Do nothing."""

    await bus.listen(subject, heard)


async def receive(bus: JetStreamBus) -> None:
    async with await bus.receive_forwarded("me", lambda delivery: None):
        """Do nothing."""


CASES: list[tuple[str, str, Callable[[JetStreamBus], Awaitable[object]]]] = [
    ("publish", "own.log.>", lambda bus: bus.publish("own.log.team.w", b"", {})),
    ("publish", "$JS.API.STREAM.INFO.*", lambda bus: bus.time()),
    ("publish", "$JS.API.STREAM.MSG.GET.>", lambda bus: bus.last("log", "own.log.team.w")),
    ("publish", "$JS.API.DIRECT.GET.>", lambda bus: drain(bus.read("requests", "own.request.team.anonymous"))),
    ("publish", "$JS.API.STREAM.PURGE.>", lambda bus: bus.trim("log", "own.log.team.w", 1)),
    ("publish", "$JS.API.STREAM.MSG.DELETE.>", lambda bus: bus.delete("log", 1)),
    ("publish", "$JS.API.CONSUMER.INFO.>", lambda bus: bus.depth("team", "requests")),
    ("publish", "$JS.API.CONSUMER.MSG.NEXT.>", take),
    ("publish", "$JS.ACK.>", acknowledge),
    ("publish", "$JS.API.CONSUMER.CREATE.>", lambda bus: drain(bus.follow("log", ["own.log.>"]))),
    ("publish", "$JS.FC.>", lambda bus: drain_many(bus)),
    ("subscribe", "own.event.>", listen),
    ("subscribe", "own.handed.>", receive),
]


@pytest.mark.parametrize(
    ("operation", "denied", "ask"), CASES, ids=[f"{denied}-{number}" for number, (_, denied, _) in enumerate(CASES)]
)
async def test_each_question_ends_with_the_brokers_words(
    operation: str, denied: str, ask: Callable[[JetStreamBus], Awaitable[object]], tmp_path: Path
) -> None:
    async with denying(tmp_path, **{operation: f'["{denied}"]'}) as (bus, port):
        with capture_logs() as lines, pytest.raises(PermissionDeniedError) as caught:
            await quickly(ask(bus), AT_ONCE)

    said = "Publish" if operation == "publish" else "Subscription"
    told = str(caught.value)
    assert f"127.0.0.1:{port} refuses user 'ada': Permissions Violation for {said} to \"" in told
    assert denied.split("*")[0].rstrip(">") in told  # with upper and lower case as in the subject
    errors = [line for line in lines if line["event"] == "permission_denied"]
    assert [line["log_level"] for line in errors] == ["error"]
    assert errors[0]["user"] == "user 'ada'"
    assert errors[0]["subject"] in told


async def test_a_large_body_that_may_not_be_stored_is_refused_at_once(tmp_path: Path) -> None:
    async with denying(tmp_path, publish='["$O.>"]') as (bus, _):
        with pytest.raises(PermissionDeniedError, match=r"\$O\.own-artifacts|\$O\."):
            await quickly(bus.publish("own.log.team.w", b"x" * (2 << 20), {}), AT_ONCE)


async def test_questions_that_are_allowed_are_not_ended(tmp_path: Path) -> None:
    async with denying(tmp_path, publish='["own.log.>"]') as (bus, _):
        refused, done, again = await quickly(
            asyncio.gather(
                bus.publish("own.log.team.w", b"", {}),
                bus.publish("own.request.team.anonymous", b"{}", {}),
                bus.publish("own.log.team.v", b"", {}),
                return_exceptions=True,
            ),
            AT_ONCE,
        )

        assert isinstance(refused, PermissionDeniedError)
        assert isinstance(again, PermissionDeniedError)
        assert done == 2
        assert await bus.publish("own.request.team.anonymous", b"{}", {}) == 3


async def test_a_refused_service_is_reported_once_and_ends_nothing(tmp_path: Path) -> None:
    async with denying(tmp_path, subscribe='["$SRV.>"]') as (bus, _):
        with capture_logs() as lines:
            async with await bus.serve(Service("echo", "1", "0.1.0", "", "own.handoff.echo.>")):
                assert await bus.last("log", "own.log.team.w") is None

    assert [line["event"] for line in lines if line["log_level"] == "error"] == ["permission_denied"]


# Limits


@pytest.mark.parametrize("limit", [1, 2, 3])  # the connection has one subscription, for its replies
async def test_a_limit_of_subscriptions_ends_each_call_that_exceeds_it(limit: int, tmp_path: Path) -> None:
    async with configured_server(tmp_path, f"max_subscriptions: {limit}") as port:
        bus = await connect(Settings(url=f"nats://127.0.0.1:{port}", namespace="own"), name="test", wait=TIMEOUT_S)
        await bus.set_up()
        calls = *(listen(bus, f"own.event.{number}.>") for number in range(3)), take(bus)

        with capture_logs() as lines:
            ends = await quickly(asyncio.gather(*calls, return_exceptions=True), AT_ONCE)

        assert bus.connected
        assert await bus.last("log", "own.log.team.w") is None
        await bus.close()

    refused = [end for end in ends if end is not None]
    assert len(refused) == len(calls) - (limit - 1)
    for end in refused:
        assert isinstance(end, PermissionDeniedError)
        assert "maximum subscriptions exceeded" in str(end)
    errors = [line for line in lines if line["log_level"] == "error"]
    assert [line["event"] for line in errors] == ["permission_denied"] * len(refused)
    assert len({line["subject"] for line in errors}) == len(refused)


async def test_a_limit_of_connections_is_not_reported_as_an_absent_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pointsman.bus.jetstream.connection.RECONNECT_INTERVAL_S", 0.1)
    async with configured_server(tmp_path, "max_connections: 1") as port:
        place = f"127.0.0.1:{port}"
        first = await connect(Settings(url=f"nats://{place}"), name="test", wait=TIMEOUT_S)
        with pytest.raises(BusUnavailableError) as caught:
            await connect(Settings(url=f"nats://{place}"), name="test", wait=2.5)  # the first try can take 2 s
        await first.close()

    assert f"the broker at {place} accepts no connection within 2.5 s" in str(caught.value)
    assert "maximum connections exceeded" in str(caught.value)
    assert "pointsman up" not in str(caught.value)


async def test_a_follower_that_jetstream_refuses_reports_an_error(tmp_path: Path) -> None:
    limited = "accounts { APP { jetstream: { max_file: 100M, max_mem: 10M, max_consumers: 1 }, users: [ USER ] } }"
    config = limited.replace("USER", "{ user: ada, password: pw }")
    async with configured_server(tmp_path, config) as port:
        bus = await connect(settings(port), name="test", wait=TIMEOUT_S)
        await bus.set_up()
        consumer = await bus.consumer("team", "log", "own.log.team.*", ack_wait=30)
        with capture_logs() as lines:
            following = asyncio.create_task(drain(bus.follow("log", ["own.log.>"])))
            await until(lambda: any(line["log_level"] == "error" for line in lines))
            following.cancel()
        with pytest.raises(ConfigurationError, match="maximum consumers limit reached"):
            await bus.consumer("other", "log", "own.log.other.*", ack_wait=30)
        await consumer.close()
        await bus.close()

    [line] = [line for line in lines if line["log_level"] == "error"]
    assert "maximum consumers limit reached" in line["reason"]


# Inboxes


async def test_an_account_without_inboxes_is_told_at_the_connection(tmp_path: Path) -> None:
    async with configured_server(tmp_path, users(subscribe='["_INBOX.>"]')) as port:
        with pytest.raises(PermissionDeniedError) as caught:
            await quickly(connect(settings(port), name="test"), AT_ONCE)

    told = str(caught.value)
    assert 'Permissions Violation for Subscription to "_INBOX.' in told
    assert "POINTSMAN_INBOX_PREFIX" in told


async def test_an_own_inbox_prefix_works_for_every_request(tmp_path: Path) -> None:
    allowed = '["_INBOX_ada.>", "own.>"]'
    rules = f"permissions: {{ subscribe: {{ allow: {allowed} }} }}"
    config = f"authorization {{ users: [ {{ user: ada, password: pw, {rules} }} ] }}"
    async with configured_server(tmp_path, config) as port:
        bus = await connect(settings(port, inbox_prefix="_INBOX_ada"), name="test", wait=TIMEOUT_S)
        with capture_logs() as lines:
            await bus.set_up()
            await bus.publish("own.request.team.anonymous", b"{}", {})
            await asyncio.wait_for(acknowledge_one(bus), TIMEOUT_S)
            await asyncio.wait_for(anext(bus.follow("requests", ["own.request.>"])), TIMEOUT_S)
            await asyncio.wait_for(drain(bus.read("requests", "own.request.team.anonymous")), TIMEOUT_S)
            await bus.registry.cards()
            async with await bus.receive_forwarded("me", lambda delivery: None):
                assert await bus.publish("own.log.team.w", b"x" * (2 << 20), {}) == 1
            assert bus.new_inbox().startswith("_INBOX_ada.")
        await bus.close()

    assert [line for line in lines if line["log_level"] == "error"] == []


async def acknowledge_one(bus: JetStreamBus) -> None:
    consumer = await bus.consumer("team", "requests", "own.request.team.anonymous", ack_wait=30)
    [delivery] = await consumer.take(1)
    await delivery.ack()
    await consumer.close()


async def test_a_permission_that_is_taken_back_ends_later_questions(tmp_path: Path) -> None:
    async with denying(tmp_path, publish='["none"]') as (bus, _):
        assert await bus.last("log", "own.log.team.w") is None
        config = tmp_path / "server.conf"
        taken = config.read_text().replace('publish: { deny: ["none"] }', 'subscribe: { deny: ["_INBOX.>"] }')
        config.write_text(taken)
        os.kill(pid_of(tmp_path), signal.SIGHUP)

        async def denied() -> bool:
            try:
                await bus.last("log", "own.log.team.w")
            except PermissionDeniedError:
                return True
            return False

        await until(denied)


# Processes


AGENT = """
from pointsman import agent


@agent(name="echo", description="Repeats the task")
async def echo(task: str) -> str:
    return task
"""
TEAM = """
from pointsman import FanOut, Team

team = Team(name="crew", agents=["echo"], strategy=FanOut())
"""


def command(port: int, *arguments: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pointsman", *arguments], cwd=folder, capture_output=True, text=True, timeout=30,
        env={**os.environ, "POINTSMAN_URL": f"nats://ada:pw@127.0.0.1:{port}", "POINTSMAN_NAMESPACE": NAMESPACE,
             "POINTSMAN_LOG_FORMAT": "json", **environment}, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "operation", "denied"),
    [
        (["worker", "echo.py"], "subscribe", "_INBOX.>"),
        (["worker", "echo.py"], "publish", "$JS.API.CONSUMER.CREATE.>"),
        (["worker", "echo.py"], "publish", "$JS.API.CONSUMER.MSG.NEXT.>"),
        (["worker", "echo.py"], "publish", "$KV.>"),
        (["worker", "echo.py"], "subscribe", "own.cancelled.>"),
        (["supervisor", "crew.py"], "subscribe", "_INBOX.>"),
        (["supervisor", "crew.py"], "publish", "$JS.API.CONSUMER.MSG.NEXT.>"),
        (["supervisor", "crew.py"], "publish", "$JS.API.STREAM.MSG.GET.>"),
        (["dashboard", "--port", "0"], "publish", "$JS.API.DIRECT.GET.>"),
        (["list"], "publish", "$JS.API.>"),
        (["submit", "crew", "hello"], "publish", "own.request.>"),
        (["submit", "crew", "hello"], "subscribe", "_INBOX.>"),
    ],
)
async def test_every_process_ends_with_the_brokers_words(
    arguments: list[str], operation: str, denied: str, tmp_path: Path
) -> None:
    (tmp_path / "echo.py").write_text(AGENT)
    (tmp_path / "crew.py").write_text(TEAM)
    async with configured_server(tmp_path, users(**{operation: f'["{denied}"]'})) as port:
        root = await connect(settings(port, "root"), name="root", wait=TIMEOUT_S)
        await root.set_up()
        await root.close()
        began = time.monotonic()

        ran = await asyncio.to_thread(command, port, *arguments, folder=tmp_path)

    assert ran.returncode == 2, ran.stderr
    last = ran.stderr.splitlines()[-1]
    assert last.startswith(f"pointsman: 127.0.0.1:{port} refuses user 'ada': Permissions Violation for ")
    assert denied.split("*")[0].rstrip(">") in last
    assert "Traceback" not in ran.stderr
    if arguments[0] in ("list", "submit"):  # a command has no log: its error is the only line
        assert ran.stderr.splitlines() == [last]
    assert time.monotonic() - began < 2 * TIMEOUT_S  # the error is a refusal, because a time-out takes longer


async def test_a_worker_that_may_not_give_results_ends_and_hands_its_work_back(tmp_path: Path) -> None:
    (tmp_path / "echo.py").write_text(AGENT)
    (tmp_path / "crew.py").write_text(TEAM)
    async with configured_server(tmp_path, users(publish='["own.result.>"]')) as port:
        root = f"nats://root:pw@127.0.0.1:{port}"
        supervisor = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "pointsman", "supervisor", "crew.py", cwd=tmp_path, stderr=subprocess.DEVNULL,
            env={**os.environ, "POINTSMAN_URL": root, "POINTSMAN_NAMESPACE": NAMESPACE},
        )  # fmt: skip
        try:
            bus = await connect(settings(port, "root"), name="root", wait=TIMEOUT_S)
            await until(lambda: exists(bus))
            working = asyncio.create_task(asyncio.to_thread(command, port, "worker", "echo.py", folder=tmp_path))
            submitted = await asyncio.to_thread(
                command, port, "submit", "crew", "hello", "--no-wait", folder=tmp_path, POINTSMAN_URL=root
            )
            ran = await working
            depth = await bus.depth("agent-echo", "handoffs")
            await bus.close()
        finally:
            supervisor.terminate()
            await asyncio.wait_for(supervisor.wait(), TIMEOUT_S)

    assert submitted.returncode == 0, submitted.stderr
    assert ran.returncode == 2, ran.stderr
    assert 'Permissions Violation for Publish to "own.result.crew.' in ran.stderr.splitlines()[-1]
    assert "bug in pointsman" not in ran.stderr
    assert depth is not None
    assert depth.pending + depth.in_flight == 1


async def test_a_supervisor_that_may_not_commit_ends_and_the_request_waits(tmp_path: Path) -> None:
    (tmp_path / "echo.py").write_text(AGENT)
    (tmp_path / "crew.py").write_text(TEAM)
    async with configured_server(tmp_path, users(publish='["own.log.>"]')) as port:
        bus = await connect(settings(port, "root"), name="root", wait=TIMEOUT_S)
        await bus.set_up()
        await bus.publish("own.request.crew.anonymous", b'{"input": "hello"}', {})

        ran = await asyncio.to_thread(command, port, "supervisor", "crew.py", folder=tmp_path)

        depth = await bus.depth("request-crew", "requests")
        await bus.close()

    assert ran.returncode == 2, ran.stderr
    assert 'Permissions Violation for Publish to "own.log.crew.' in ran.stderr.splitlines()[-1]
    assert "Traceback" not in ran.stderr
    assert depth is not None
    assert depth.pending + depth.in_flight == 1


async def exists(bus: JetStreamBus) -> bool:
    try:
        return await bus.depth("result-crew", "results") is not None
    except Exception:
        return False


async def test_doctor_names_the_refused_subject(tmp_path: Path) -> None:
    async with denying(tmp_path, publish='["$JS.API.STREAM.INFO.*"]') as (_, port):
        ran = await asyncio.to_thread(command, port, "doctor", folder=tmp_path)

    assert ran.returncode == 1
    assert "BAD  permissions   127.0.0.1:" in ran.stdout
    assert 'Permissions Violation for Publish to "$JS.API.STREAM.INFO.' in ran.stdout


async def test_the_late_refusal_of_an_abandoned_optional_request_is_no_error(tmp_path: Path) -> None:
    async with denying(tmp_path, publish="own.log.>") as (bus, _):
        with capture_logs() as lines:
            with suppress(TimeoutError), bus.optional_requests(""):
                publishing = asyncio.create_task(bus.publish("own.log.team.w", b"", {}))
                raise TimeoutError
            with pytest.raises(PermissionDeniedError):
                await publishing

    assert lines == []
