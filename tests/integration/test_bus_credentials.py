"""Local faults of a login are reported before any connection and differ from network faults.

Class of fault: the credentials file is first read during a connection. So an unusable file or a missing package is
reported as an unavailable broker, as a traceback, or not at all. Another fault of this class is that the parts of a URL
are sent percent-encoded.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from support.broker import TIMEOUT_S
from support.cluster import free_ports
from support.configured_server import configured_server
from support.nats_accounts import JwtAccounts, NKey
from support.recording_server import RecordingServer
from support.waiting import quickly, until

from pointsman.bus.embedded_server import EmbeddedBroker
from pointsman.bus.jetstream.bus import JetStreamBus, connect
from pointsman.bus.jetstream.login import Login, addresses
from pointsman.errors import BusUnavailableError, ConfigurationError
from pointsman.settings import Settings

NOBODY = "nats://127.0.0.1:9"
AT_ONCE = 4.0  # seconds
ACCOUNTS = JwtAccounts()
WHOLE = ACCOUNTS.credentials("ada")
JWT_BLOCK, SEED_BLOCK = WHOLE.split("*" * 25, 1)[0], WHOLE[WHOLE.index("-----BEGIN USER NKEY SEED") :]
SEED = SEED_BLOCK.splitlines()[1]

MISFITS = [
    ("missing", None, "does not exist"),
    ("folder", None, "is a directory"),
    ("under", None, "cannot be read: Not a directory"),
    ("pipe", None, "is not a regular file"),
    ("empty", b"", "is empty"),
    ("blank", b" \n\n", "is empty"),
    ("other", b"hello\n", "is not a credentials file"),
    ("binary", b"\xff\xfe\x00", "is not text"),
    ("large", b"x" * (2 << 20), "has 2097152 bytes"),
    ("seed", f"{SEED}\n".encode(), "has only a seed and no JWT"),
    ("seed-block", SEED_BLOCK.encode(), "has no user JWT"),
    ("jwt-block", JWT_BLOCK.encode(), "has no seed"),
    ("empty-jwt", WHOLE.replace(JWT_BLOCK.splitlines()[1], "").encode(), "has no user JWT"),
    ("no-jwt", WHOLE.replace(JWT_BLOCK.splitlines()[1], "a.b.c").encode(), "has a JWT that cannot be read"),
    ("no-seed", WHOLE.replace(SEED, "not base32!").encode(), "has a seed that cannot be read"),
    ("cut-seed", WHOLE.replace(SEED, SEED[:-8]).encode(), "has a seed that is damaged"),
    ("account-seed", WHOLE.replace(SEED, NKey("account").seed).encode(), "has a seed that is not the seed of a user"),
    ("other-seed", WHOLE.replace(SEED, NKey("user").seed).encode(), "has the seed of U"),
]


async def refused(settings: Settings) -> str:
    with pytest.raises(ConfigurationError) as caught:
        await quickly(connect(settings, name="test"), AT_ONCE)
    told = str(caught.value)
    assert "\n" not in told
    assert SEED not in told
    return told


# Credentials files


async def test_a_user_of_a_credentials_file_logs_in(tmp_path: Path) -> None:
    path = ACCOUNTS.write(tmp_path / "ada.creds", "ada")
    async with configured_server(tmp_path, ACCOUNTS.config) as port:
        bus = await connect(
            Settings(url=f"nats://127.0.0.1:{port}", credentials=str(path)), name="test", wait=TIMEOUT_S
        )
        await bus.set_up()
        await bus.close()


async def test_a_home_directory_and_windows_line_ends_are_understood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "ada.creds").write_bytes(ACCOUNTS.credentials("ada").replace("\n", "\r\n").encode())
    async with configured_server(tmp_path, ACCOUNTS.config) as port:
        settings = Settings(url=f"nats://127.0.0.1:{port}", credentials=" ~/ada.creds\n")
        bus = await connect(settings, name="test", wait=TIMEOUT_S)
        await bus.close()


@pytest.mark.parametrize(("kind", "content", "expected"), MISFITS, ids=[kind for kind, _, _ in MISFITS])
async def test_a_credentials_file_that_cannot_be_used_is_named(
    kind: str, content: bytes | None, expected: str, tmp_path: Path
) -> None:
    path = tmp_path / kind
    if kind == "folder":
        path.mkdir()
    if kind == "pipe":
        os.mkfifo(path)
    if kind == "under":
        path.write_text("")
        path /= "file.creds"
    if content is not None:
        path.write_bytes(content)

    told = await refused(Settings(url=NOBODY, credentials=str(path)))

    assert told.startswith(f"POINTSMAN_CREDENTIALS: {path} ")
    assert expected in told


async def test_a_file_without_the_right_to_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = ACCOUNTS.write(tmp_path / "ada.creds", "ada")

    def denied(self: Path, **_: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", denied)

    assert "ada.creds cannot be read: Permission denied" in await refused(Settings(url=NOBODY, credentials=str(path)))


async def test_the_user_of_a_refused_credentials_file_is_named(tmp_path: Path) -> None:
    expired = ACCOUNTS.write(tmp_path / "old.creds", "grace", exp=int(time.time()) - 60)
    stranger = JwtAccounts().write(tmp_path / "stranger.creds", "eve")
    async with configured_server(tmp_path, ACCOUNTS.config) as port:
        for path, name in ((expired, "grace"), (stranger, "eve")):
            told = await refused(Settings(url=f"nats://127.0.0.1:{port}", credentials=str(path)))
            assert f"refuses the connection of user {name!r} of {path}" in told
            assert "POINTSMAN_CREDENTIALS" in told


async def test_renewed_credentials_are_read_at_the_next_connection(tmp_path: Path) -> None:
    path = tmp_path / "ada.creds"
    async with configured_server(tmp_path, ACCOUNTS.config) as port:
        settings = Settings(url=f"nats://127.0.0.1:{port}", credentials=str(path), request_timeout=5.0)

        async def log_in(seconds: int) -> JetStreamBus:
            ACCOUNTS.write(path, "ada", exp=int(time.time()) + seconds)
            return await connect(settings, name="test", wait=TIMEOUT_S)

        with capture_logs() as lines:
            try:
                bus = await log_in(2)
            except ConfigurationError:  # on a busy machine, the login expires before the connection is open
                bus = await log_in(8)
            path.write_text("being written")  # a user that expires soon is accepted
            expected = {"connection_rejected", "credentials_not_read"}
            await until(lambda: expected <= {line["event"] for line in lines})
            with pytest.raises(BusUnavailableError, match=r"refuses the connection of user 'ada'"):
                await quickly(bus.time(), AT_ONCE)

            ACCOUNTS.write(path, "ada")

            await until(lambda: bus.connected)
        assert {line["log_level"] for line in lines if line["event"] == "connection_rejected"} == {"error"}
        await bus.set_up()
        await bus.close()


# Logins in a URL


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("nats://a%40b:p%2Fw%3A%25@h:1", ("nats://h:1", "a@b", "p/w:%", None)),
        ("nats://a%2540b:pw@h:1", ("nats://h:1", "a%40b", "pw", None)),
        ("nats://t%2Fo%40k@h:1", ("nats://h:1", None, None, "t/o@k")),
        ("nats://a+b:p@w@h:1", ("nats://h:1", "a+b", "p@w", None)),
        ("tls://ada:@[::1]:4222", ("tls://[::1]:4222", "ada", "", None)),
        ("ada:pw@h", ("h", "ada", "pw", None)),
        ("h:4222", ("h:4222", None, None, None)),
    ],
)
def test_the_parts_of_a_url_are_decoded_once(url: str, expected: tuple[str | None, ...]) -> None:
    [found] = addresses(url)

    assert (found.url, found.user, found.password, found.token) == expected


@pytest.mark.parametrize(("user", "password"), [("a@b", "p/w:%"), ("ada", "100%40"), ("ü", "ñ+ %")])
async def test_a_login_with_special_characters_is_accepted(user: str, password: str, tmp_path: Path) -> None:
    from urllib.parse import quote

    async with EmbeddedBroker(tmp_path, extra_args=["--user", user, "--pass", password]) as server:
        place = server.url.removeprefix("nats://")
        for settings in (
            Settings(url=f"nats://{quote(user, safe='')}:{quote(password, safe='')}@{place}"),
            Settings(url=server.url, user=user, password=password),
        ):
            bus = await connect(settings, name="test", wait=TIMEOUT_S)
            await bus.close()


async def test_a_token_with_special_characters_is_accepted(tmp_path: Path) -> None:
    async with EmbeddedBroker(tmp_path, extra_args=["--auth", "to/k@n%"]) as server:
        place = server.url.removeprefix("nats://")
        for settings in (Settings(url=f"nats://to%2Fk%40n%25@{place}"), Settings(url=server.url, token="to/k@n%")):
            bus = await connect(settings, name="test", wait=TIMEOUT_S)
            await bus.close()


async def test_each_server_is_sent_the_login_of_its_own_url() -> None:
    async with RecordingServer() as one, RecordingServer() as two:
        login = Login(Settings(url=f"nats://ada:first@{one.place},nats://bob:second@{two.place}"))

        assert [login.at(each.place).password for each in (one, two)] == ["first", "second"]
        assert login.at("127.0.0.1:1").password == "first"  # an address that the cluster announces
        settings = Settings(url=f"nats://ada:first@{one.place},nats://bob:second@{two.place}", user="", password=" ")
        bus = await connect(settings, name="test", wait=TIMEOUT_S)
        await bus.close()

    assert b"second" not in one.clear
    assert b"first" not in two.clear
    assert b"first" in one.clear or b"second" in two.clear


@pytest.mark.parametrize(
    ("login", "named"),
    [
        ({"user": "ada", "password": "wrong"}, "user 'ada'"),
        ({"url": "nats://ada:wrong@{place}"}, "user 'ada'"),
        ({"token": "wrong"}, "the user of a token"),
        ({}, "a client without a login"),
        ({"user": "ada"}, "POINTSMAN_USER is a login only together with POINTSMAN_PASSWORD"),
    ],
)
async def test_a_refused_login_names_the_user_and_no_secret(login: dict[str, str], named: str, tmp_path: Path) -> None:
    async with EmbeddedBroker(tmp_path, extra_args=["--user", "ada", "--pass", "right"]) as server:
        place = server.url.removeprefix("nats://")
        url = login.get("url", "nats://{place}").format(place=place)

        told = await refused(Settings(**{**login, "url": url}))

    assert f"{place} refuses the connection of " in told
    assert named in told
    assert "Authorization Violation" in told
    assert "wrong" not in told


# Commands


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pointsman", *arguments],
        env={**os.environ, **environment}, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("arguments", [["worker", "pointsman_agents.planner"], ["list"], ["dashboard"]])
def test_every_process_ends_with_one_line_for_a_missing_file(arguments: list[str], tmp_path: Path) -> None:
    port = free_ports(1)[0]

    ran = command(*arguments, POINTSMAN_URL=f"nats://127.0.0.1:{port}", POINTSMAN_CREDENTIALS=str(tmp_path / "no"))

    assert ran.returncode == 2, ran.stderr
    assert ran.stderr == f"pointsman: POINTSMAN_CREDENTIALS: {tmp_path / 'no'} does not exist\n"


def test_doctor_names_the_file_too(tmp_path: Path) -> None:
    ran = command("doctor", POINTSMAN_URL=NOBODY, POINTSMAN_CREDENTIALS=str(tmp_path / "no"))

    assert ran.returncode == 1
    assert f"BAD broker POINTSMAN_CREDENTIALS: {tmp_path / 'no'} does not exist" in " ".join(ran.stdout.split())
    assert "JetStream 2.12.8" not in ran.stdout
    assert ran.stderr == ""


def test_a_worker_that_waits_for_its_broker_ends_at_a_signal(tmp_path: Path) -> None:
    path = ACCOUNTS.write(tmp_path / "ada.creds", "ada")
    waiting = subprocess.Popen(
        [sys.executable, "-m", "pointsman", "worker", "pointsman_agents.planner"],
        env={**os.environ, "POINTSMAN_URL": NOBODY, "POINTSMAN_CREDENTIALS": str(path), "POINTSMAN_LOG_FORMAT": "json"},
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert waiting.stderr is not None
    line = waiting.stderr.readline()
    waiting.send_signal(signal.SIGTERM)

    assert "bus_error" in line
    assert waiting.wait(TIMEOUT_S) == 130
    waiting.stderr.close()
