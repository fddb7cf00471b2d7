"""Every promise of a `Bus` is tested on the in-memory broker and on a real nats-server alike."""

from __future__ import annotations

from support.place import bus, place, server

__all__ = ["bus", "place", "server"]
