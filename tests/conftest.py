"""Fixtures every test may ask for."""

from __future__ import annotations

from support.broker import broker, bus, namespace, settings

__all__ = ["broker", "bus", "namespace", "settings"]
