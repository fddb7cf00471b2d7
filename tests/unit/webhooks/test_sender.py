"""The webhook client checks the address, uses TLS and reads responses."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
import threading
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from support.certificates import Authority
from support.receiver import Reply, receiving

from pointsman.util.network import is_public
from pointsman.webhooks.sender import Sender, SendError

PUBLIC = ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1"]
OTHERS = [
    "127.0.0.1", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "100.64.0.1", "169.254.169.254", "192.0.2.1",
    "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255", "::", "::1", "fe80::1", "fc00::1", "fec0::1", "ff0e::1",
    "2001:db8::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "64:ff9b:1::1", "2002:7f00:1::1",
    "2002:a00:1::1", "2001:0:53aa:64c:0:0:80ff:fffe", "168.63.129.16", "192.0.0.192", "192.88.99.1", "3fff::1",
    "2606:4700::5efe:7f00:1", "2606:4700::200:5efe:a9fe:a9fe", "::ffff:168.63.129.16", "64:ff9b::192.0.0.192",
]  # fmt: skip


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_is_public(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", OTHERS)
def test_an_address_within_a_network_is_not_public(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize("host", ["localhost", "127.1", "2130706433", "0x7f.1", "[::1]", "[::ffff:127.0.0.1]"])
async def test_no_spelling_of_a_local_address_is_connected_to(host: str) -> None:
    async with receiving() as receiver:
        port = receiver.url.split(":")[2]
        with pytest.raises(SendError, match="has an address that is not public") as caught:
            await Sender(timeout=5).post(f"https://{host}:{port}", b"{}", {})

    assert caught.value.kind == "address_refused"


async def test_a_name_that_changes_its_address_is_resolved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name server answers the first query with a public address, and later queries with a local address."""
    answers = [["8.8.8.8"], ["127.0.0.1"]]
    asked: list[str] = []
    connected: list[str] = []

    def resolve(host: str, port: int, **others: Any) -> list[Any]:
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in answers[len(asked) - 1]]

    async def connect(host: str, port: int, **others: Any) -> Any:
        connected.append(host)
        raise OSError("no route")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(asyncio, "open_connection", connect)
    with pytest.raises(SendError, match="no route"):
        await Sender(timeout=5).post("https://rebind.example/", b"{}", {})

    assert (asked, connected) == (["rebind.example"], ["8.8.8.8"])


async def test_a_name_with_one_address_that_is_not_public_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(host: str, port: int, **others: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in ("8.8.8.8", "10.0.0.1")]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with pytest.raises(SendError, match="has an address that is not public") as caught:
        await Sender(timeout=5).post("https://both.example/", b"{}", {})

    assert "10.0.0.1" not in str(caught.value)  # callers of the gateway can read the error


async def test_hosts_with_slow_name_servers_delay_no_other_host(monkeypatch: pytest.MonkeyPatch) -> None:
    answering = threading.Event()

    def resolve(host: str, port: int, **others: Any) -> list[Any]:
        if host == "slow.example":
            answering.wait(20)
        raise OSError("no such host")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    sender = Sender(timeout=30)
    slow = [asyncio.create_task(sender.post("https://slow.example/", b"{}", {})) for _ in range(40)]
    await asyncio.sleep(0)  # all 40 requests query the name server
    with pytest.raises(SendError, match="no such host"):
        await Sender(timeout=10).post("https://quick.example/", b"{}", {})
    answering.set()

    assert {type(each) for each in await asyncio.gather(*slow, return_exceptions=True)} == {SendError}


@pytest.mark.parametrize(
    ("given", "least", "most"),
    [
        ("7", 7.0, 7.0),
        ("9" * 30, 86_400.0, 86_400.0),
        ("-5", 0.0, 0.0),
        ("soon", 0.0, 0.0),
        (timedelta(hours=1), 3_000.0, 3_600.0),
        (timedelta(hours=-1), 0.0, 0.0),
    ],
)
async def test_retry_after_is_read_as_seconds_and_as_a_date(given: str | timedelta, least: float, most: float) -> None:
    text = given if isinstance(given, str) else format_datetime(datetime.now(UTC) + given, usegmt=True)
    async with receiving(Reply(503, (("retry-after", text),))) as receiver:
        response = await Sender(timeout=5, private_networks=True).post(receiver.url, b"{}", {})

    assert response.status == 503
    assert least <= response.retry_after <= most


async def test_a_response_that_never_ends_is_not_read() -> None:
    endless = Reply(
        raw=b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"x" * 9
    )
    async with receiving(endless, Reply(raw=b"HTTP/1.1 103 a\r\n\r\n" * 10_000)) as receiver:
        sender = Sender(timeout=5, private_networks=True)
        response = await sender.post(receiver.url, b"{}", {})
        with pytest.raises(SendError, match="has more than"):
            await sender.post(receiver.url, b"{}", {})

    assert response.status == 200


async def test_a_certificate_must_be_of_the_host(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate = authority.issue("receiver", host="localhost")
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(certificate.cert, certificate.key)
    trusting = ssl.create_default_context(cafile=str(authority.path))
    async with receiving(tls=server) as receiver:
        url = receiver.url.replace("127.0.0.1", "localhost")
        accepted = await Sender(timeout=5, private_networks=True, tls=trusting).post(url, b"{}", {})
        with pytest.raises(SendError) as caught:
            await Sender(timeout=5, private_networks=True).post(url, b"{}", {})

    assert accepted.status == 204
    assert caught.value.kind == "tls"
