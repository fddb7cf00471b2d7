"""Fixtures that run each test of a `Bus` on the memory broker and on a real nats-server."""

from __future__ import annotations

from support.place import bus, heartbeat, place, server

__all__ = ["bus", "heartbeat", "place", "server"]
