"""A scheme with TLS requires TLS, and a TLS fault is reported as a TLS fault.

Class of fault: `tls://`, `wss://` or a TLS setting is not enforced, so a server without TLS gets the login unencrypted.
This server can be the first one or an address that the cluster announces. Another fault of this class is that a wrong
certificate is reported as an unavailable broker.
"""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from support.broker import TIMEOUT_S
from support.certificates import Authority
from support.cluster import free_ports
from support.configured_server import configured_server
from support.recording_server import RecordingServer, server_context
from support.waiting import quickly, until

from pointsman.bus.jetstream.bus import JetStreamBus, connect
from pointsman.errors import BusUnavailableError, ConfigurationError
from pointsman.settings import Settings

AT_ONCE = 4.0  # seconds; a permanent fault must be reported long before the time-out of a connection


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def tls_block(folder: Path, authority: Authority, *, name: str = "127.0.0.1", more: str = "") -> str:
    made = authority.issue(name)
    return f"tls {{ cert_file: {str(made.cert)!r}, key_file: {str(made.key)!r}, {more} }}"


async def newest(bus: JetStreamBus) -> bytes | None:
    found = await bus.last("log", "pointsman.log.team.w")
    return found.body if found else None


# Demands


@pytest.mark.parametrize(
    "login", [{"url": "tls://ada:secret@{place}"}, {"user": "ada", "password": "secret"}, {"token": "secret"}]
)
async def test_a_server_without_tls_is_left_before_the_login_is_sent(login: dict[str, str]) -> None:
    async with RecordingServer() as server:
        settings = Settings(
            **{"url": "tls://{place}", **login} | {"url": login.get("url", "tls://{place}").format(place=server.place)}
        )

        with pytest.raises(ConfigurationError, match=f"{server.place} offers no TLS, which tls:// ") as refused:
            await quickly(connect(settings, name="test"), AT_ONCE)

    assert (bytes(server.clear), server.connections) == (b"", 1)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("setting", ["tls_ca", "tls_cert", "tls_handshake_first"])
async def test_a_tls_setting_requires_tls_with_any_scheme(setting: str, authority: Authority) -> None:
    client = authority.issue("client")
    own = {"tls_ca": str(authority.path)} if setting == "tls_ca" else {}
    if setting == "tls_cert":
        own = {"tls_cert": str(client.cert), "tls_key": str(client.key)}
    if setting == "tls_handshake_first":
        own = {"tls_handshake_first": "true"}
    async with RecordingServer() as server:
        settings = Settings(url=f"nats://ada:secret@{server.place}", **own)

        with pytest.raises((ConfigurationError, BusUnavailableError)):
            await connect(settings, name="test", wait=2.0)

    assert b"CONNECT" not in server.clear
    assert b"secret" not in server.clear


async def test_one_tls_url_is_a_demand_of_every_server() -> None:
    async with RecordingServer() as first, RecordingServer() as second:
        settings = Settings(url=f"tls://{first.place},nats://ada:secret@{second.place}")

        with pytest.raises(ConfigurationError, match="offers no TLS"):
            await quickly(connect(settings, name="test"), 2 * AT_ONCE)

    assert (bytes(first.clear), bytes(second.clear)) == (b"", b"")


@pytest.mark.parametrize("scheme", ["tls", "nats"])
async def test_a_server_without_tls_is_sent_nothing_after_a_reconnect(scheme: str, authority: Authority) -> None:
    made = authority.issue("127.0.0.1")
    secure = RecordingServer(tls=server_context(str(made.cert), str(made.key)))
    await secure.start()
    settings = Settings(url=f"{scheme}://ada:secret@{secure.place}", tls_ca=str(authority.path), request_timeout=1.0)
    bus = await connect(settings, name="test", wait=TIMEOUT_S)
    assert b'"pass": "secret"' in secure.inside

    await secure.stop()
    plain = RecordingServer()
    with capture_logs() as lines:
        await plain.start(secure.port)
        await until(lambda: plain.connections > 1)
    with pytest.raises(BusUnavailableError, match="offers no TLS"):
        await quickly(bus.time(), AT_ONCE)
    await bus.close()
    await plain.stop()

    assert (bytes(plain.clear), bytes(secure.clear)) == (b"", b"")
    assert [line["log_level"] for line in lines if line["event"] == "connection_rejected"] == ["error"]


async def test_a_discovered_server_without_tls_is_sent_nothing(authority: Authority) -> None:
    made = authority.issue("127.0.0.1")
    async with RecordingServer() as plain:
        context = server_context(str(made.cert), str(made.key))
        secure = RecordingServer(tls=context, info={"connect_urls": [plain.place]})
        await secure.start()
        settings = Settings(url=f"tls://ada:secret@{secure.place}", tls_ca=str(authority.path))
        bus = await connect(settings, name="test", wait=TIMEOUT_S)

        await secure.stop()
        await until(lambda: plain.connections > 1)
        await bus.close()

    assert bytes(plain.clear) == b""


async def test_a_discovered_server_with_tls_is_sent_the_login_of_the_url(authority: Authority) -> None:
    made = authority.issue("127.0.0.1")
    context = server_context(str(made.cert), str(made.key))
    async with RecordingServer(tls=context) as second:
        first = RecordingServer(tls=context, info={"connect_urls": [second.place]})
        await first.start()
        settings = Settings(url=f"tls://ada:secret@{first.place}", tls_ca=str(authority.path))
        bus = await connect(settings, name="test", wait=TIMEOUT_S)

        await first.stop()
        await until(lambda: bus.connected and second.connections > 0)
        await bus.close()

    assert b'"pass": "secret"' in second.inside
    assert bytes(second.clear) == b""


async def test_tls_that_is_offered_and_not_required_is_used(tmp_path: Path, authority: Authority) -> None:
    config = f"{tls_block(tmp_path, authority)}\nallow_non_tls: true\n"
    async with configured_server(tmp_path, config) as port:
        settings = Settings(url=f"tls://127.0.0.1:{port}", tls_ca=str(authority.path))

        bus = await connect(settings, name="test", wait=TIMEOUT_S)

        await bus.set_up()
        assert (await bus.api("INFO"))["api"]["level"] > 0
        await bus.close()


async def test_the_login_is_encrypted_where_tls_is_only_offered(authority: Authority) -> None:
    made = authority.issue("127.0.0.1")
    offering = {"tls_required": False, "tls_available": True}
    async with RecordingServer(tls=server_context(str(made.cert), str(made.key)), info=offering) as server:
        settings = Settings(url=f"tls://ada:secret@{server.place}", tls_ca=str(authority.path))
        bus = await connect(settings, name="test", wait=TIMEOUT_S)
        await bus.close()

    assert b'"pass": "secret"' in server.inside
    assert bytes(server.clear) == b""


async def test_a_websocket_that_must_be_encrypted_is_sent_nothing_in_clear() -> None:
    pytest.importorskip("aiohttp")
    async with RecordingServer() as server:
        settings = Settings(url=f"wss://ada:secret@{server.place}")

        with pytest.raises(ConfigurationError, match=f"TLS to {server.place} fails"):
            await quickly(connect(settings, name="test"), AT_ONCE)

    assert b"secret" not in server.clear
    assert b"HTTP" not in server.clear


async def test_a_websocket_without_encryption_does_not_go_with_tls_settings(authority: Authority) -> None:
    pytest.importorskip("aiohttp")
    settings = Settings(url="ws://127.0.0.1:9", tls_ca=str(authority.path))

    with pytest.raises(ConfigurationError, match="ws:// is never encrypted"):
        await connect(settings, name="test")


@pytest.mark.parametrize(("status", "permanent"), [(403, True), (404, True), (503, False)])
async def test_a_server_that_refuses_the_websocket_is_named(status: int, permanent: bool) -> None:
    pytest.importorskip("aiohttp")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {status} No\r\nContent-Length: 0\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        place = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        expected = ConfigurationError if permanent else BusUnavailableError
        with pytest.raises(expected, match=str(status)):
            await connect(Settings(url=f"ws://{place}"), name="test", wait=1.5)


# Settings


async def test_a_private_ca_and_a_client_certificate_connect(tmp_path: Path, authority: Authority) -> None:
    client = authority.issue("client")
    block = tls_block(tmp_path, authority, more=f"ca_file: {str(authority.path)!r}, verify: true")
    async with configured_server(tmp_path, block) as port:
        settings = Settings(
            url=f"tls://127.0.0.1:{port}",
            tls_ca=str(authority.path),
            tls_cert=str(client.cert),
            tls_key=str(client.key),
        )

        bus = await connect(settings, name="test", wait=TIMEOUT_S)

        await bus.set_up()
        await bus.publish("pointsman.log.team.w", b"x" * 100_000, {})
        assert await newest(bus) == b"x" * 100_000
        await bus.close()


async def test_a_server_that_begins_with_the_handshake_connects(tmp_path: Path, authority: Authority) -> None:
    block = tls_block(tmp_path, authority, more="handshake_first: true")
    async with configured_server(tmp_path, block) as port:
        settings = Settings(url=f"tls://127.0.0.1:{port}", tls_ca=str(authority.path), tls_handshake_first=True)

        bus = await connect(settings, name="test", wait=TIMEOUT_S)

        await bus.set_up()
        await bus.close()
        with pytest.raises(BusUnavailableError, match="POINTSMAN_TLS_HANDSHAKE_FIRST"):
            await connect(settings.model_copy(update={"tls_handshake_first": False}), name="test", wait=3.0)


async def test_a_websocket_connects_over_a_private_ca(tmp_path: Path, authority: Authority) -> None:
    pytest.importorskip("aiohttp")
    [port] = free_ports(1)
    block = f"websocket {{ listen: 127.0.0.1:{port}, {tls_block(tmp_path, authority)} }}"
    async with configured_server(tmp_path, block):
        settings = Settings(url=f"wss://127.0.0.1:{port}", tls_ca=str(authority.path))

        bus = await connect(settings, name="test", wait=TIMEOUT_S)

        await bus.set_up()
        await bus.publish("pointsman.log.team.w", b"x", {})
        assert await newest(bus) == b"x"
        await bus.close()


# Faults


async def faulty(settings: Settings) -> str:
    """Return the error of a connection that must fail at once."""
    with pytest.raises(ConfigurationError) as refused:
        await quickly(connect(settings, name="test"), AT_ONCE)
    told = str(refused.value)
    assert "no broker" not in told
    assert "\n" not in told
    return told


async def test_each_fault_of_the_servers_certificate_is_named(tmp_path: Path, authority: Authority) -> None:
    cases = {
        "unknown": (
            authority.issue("one"),
            Authority(tmp_path, "other").path,
            "set POINTSMAN_TLS_CA to the file of this CA",
        ),
        "expired": (authority.issue("two", expired=True), authority.path, "has expired"),
        "name": (authority.issue("three", host="broker.example"), authority.path, "is for another address"),
    }
    for name, (made, trusted, expected) in cases.items():
        block = f"tls {{ cert_file: {str(made.cert)!r}, key_file: {str(made.key)!r} }}"
        async with configured_server(tmp_path, block, name=name) as port:
            told = await faulty(Settings(url=f"tls://127.0.0.1:{port}", tls_ca=str(trusted)))
            assert f"TLS to 127.0.0.1:{port} fails: " in told
            assert expected in told
            # Without `tls://`, TLS is used because the server requires it.
            system = await faulty(Settings(url=f"nats://127.0.0.1:{port}"))
            assert f"TLS to 127.0.0.1:{port} fails: " in system


async def test_a_client_certificate_that_is_missing_or_unknown_is_named(tmp_path: Path, authority: Authority) -> None:
    block = tls_block(tmp_path, authority, more=f"ca_file: {str(authority.path)!r}, verify: true")
    stranger = Authority(tmp_path, "stranger").issue("someone")
    async with configured_server(tmp_path, block) as port:
        trusting = {"url": f"tls://ada:secret@127.0.0.1:{port}", "tls_ca": str(authority.path)}

        missing = await faulty(Settings(**trusting))
        unknown = await faulty(Settings(**trusting, tls_cert=str(stranger.cert), tls_key=str(stranger.key)))

    assert "requires a client certificate: set POINTSMAN_TLS_CERT and POINTSMAN_TLS_KEY" in missing
    assert "POINTSMAN_TLS_CERT" in unknown


@pytest.mark.parametrize("setting", ["tls_ca", "tls_cert", "tls_key"])
@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("missing", "does not exist"),
        ("folder", "is a directory"),
        ("empty", "PEM"),
        ("other", "PEM"),
        ("binary", "is not text"),
        ("home", "does not exist"),
    ],
)
async def test_a_file_that_cannot_be_used_is_named_with_its_setting(
    setting: str, kind: str, expected: str, tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    good = authority.issue("client")
    path = tmp_path / kind
    if kind == "folder":
        path.mkdir()
    if kind in ("empty", "other", "binary"):
        path.write_bytes({"empty": b"", "other": b"hello\n", "binary": b"\xff\xfe\x00"}[kind])
    files = {"tls_ca": str(authority.path), "tls_cert": str(good.cert), "tls_key": str(good.key)}
    files[setting] = "~/home" if kind == "home" else str(path)

    told = await faulty(Settings(url="tls://127.0.0.1:9", **files))

    assert f"POINTSMAN_{setting.upper()}" in told
    assert str(path) in told
    assert expected in told


async def test_keys_that_do_not_fit_or_need_a_password_are_named(tmp_path: Path, authority: Authority) -> None:
    from cryptography.hazmat.primitives import serialization

    one, other = authority.issue("one"), authority.issue("other")
    key = serialization.load_pem_private_key(other.key.read_bytes(), None)
    locked = tmp_path / "locked.key"
    form, encryption = serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"word")
    locked.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, encryption))

    crossed = await faulty(Settings(url="tls://127.0.0.1:9", tls_cert=str(one.cert), tls_key=str(other.key)))
    password = await faulty(Settings(url="tls://127.0.0.1:9", tls_cert=str(one.cert), tls_key=str(locked)))
    alone = await faulty(Settings(url="tls://127.0.0.1:9", tls_key=str(one.key)))

    assert f"POINTSMAN_TLS_KEY: {other.key} is not the key of the certificate {one.cert}" in crossed
    assert f"POINTSMAN_TLS_KEY: {locked} is encrypted" in password
    assert "POINTSMAN_TLS_KEY is set, but POINTSMAN_TLS_CERT is unset" in alone


async def test_a_server_that_ends_during_the_handshake_is_waited_for(authority: Authority) -> None:
    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"tls_required": true}\r\n')
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        settings = Settings(url=f"tls://127.0.0.1:{port}", tls_ca=str(authority.path))

        with pytest.raises(BusUnavailableError):
            await connect(settings, name="test", wait=1.0)


def test_the_private_ca_takes_the_place_of_the_systems(authority: Authority) -> None:
    from pointsman.bus.jetstream.tls import tls_context

    context = tls_context(Settings(tls_ca=str(authority.path)))

    assert len(context.get_ca_certs()) == 1
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
