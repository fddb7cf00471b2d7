"""The server of the gateway and the dashboard."""

from __future__ import annotations

import socket

from pointsman.http.server import listen


def test_a_connection_sends_small_packets_at_once() -> None:
    """Otherwise the second packet of a response waits for an acknowledgement, which is delayed by 40 ms."""
    with listen("gateway", "127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
