"""The error of an observer that raises is logged and has no effect on the bus."""

from __future__ import annotations

import json

import pytest
from structlog.testing import capture_logs

from pointsman.bus.jetstream.bus import JetStreamBus
from pointsman.bus.jetstream.protocol import WireMessage
from pointsman.bus.jetstream.request_reply import RequestClient
from pointsman.bus.observer import SafeObserver
from pointsman.errors import PeerError
from pointsman.ports.bus import Server, TraceHop
from pointsman.settings import Settings


class Broken:
    """An observer that raises on every call."""

    def on_published(self, subject: str, server: Server | None, seconds: float, error: str | None) -> None:
        raise RuntimeError("the meter is broken")

    def on_received(self, subject: str, server: Server | None, consumer: str, amount: int) -> None:
        raise RuntimeError("the meter is broken")

    def on_hop(self, hop: TraceHop) -> None:
        raise RuntimeError("the meter is broken")


def watched(monkeypatch: pytest.MonkeyPatch, answer: object) -> JetStreamBus:
    """Return a bus whose broker gives this answer to every request."""

    async def answered() -> WireMessage:
        return WireMessage("_INBOX.1", "", json.dumps(answer).encode())

    monkeypatch.setattr(RequestClient, "request", lambda *_, **__: answered)
    return JetStreamBus(Settings(), name="test", observer=Broken())


async def test_a_stored_message_counts_although_its_observer_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    bus = watched(monkeypatch, {"stream": "POINTSMAN_WORK", "seq": 7})

    with capture_logs() as lines:
        assert await bus.publish("pointsman.request.crew.anonymous", b"{}", {}) == 7

    assert [line["event"] for line in lines] == ["bus_observer_failed"]


async def test_the_error_of_a_refused_message_is_not_replaced_by_the_observers_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bus = watched(monkeypatch, {"error": {"code": 400, "err_code": 10_999, "description": "no"}})

    with pytest.raises(PeerError):
        await bus.publish("pointsman.request.crew.anonymous", b"{}", {})


def test_error_of_an_observer_is_not_raised() -> None:
    watcher = SafeObserver(Broken())

    with capture_logs() as lines:
        watcher.on_published("a", None, 0.1, None)
        watcher.on_received("a", None, "b", 1)

    assert [line["event"] for line in lines] == ["bus_observer_failed"] * 2
