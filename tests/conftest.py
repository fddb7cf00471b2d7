"""Fixtures every test may ask for."""

from __future__ import annotations

from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from support.broker import broker, bus, namespace, settings

__all__ = ["broker", "bus", "namespace", "settings"]

# A busy machine is no reason to fail: how long something may take is asserted where it matters.
hypothesis_settings.register_profile("pointsman", deadline=None, suppress_health_check=[HealthCheck.too_slow])
hypothesis_settings.load_profile("pointsman")
