"""A webhook service in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from pointsman.bus.jetstream.bus import connect
from pointsman.clock import SystemClock
from pointsman.settings import Settings
from pointsman.webhooks.service import WebhookService

__all__ = ["served_webhooks"]

WAIT_S = 20.0
_QUICK: dict[str, Any] = {
    "webhook_retries": ",".join(["0.05"] * 6),
    "webhook_private_networks": True,
}


@asynccontextmanager
async def served_webhooks(settings: Settings, **options: Any) -> AsyncIterator[None]:
    """Run a webhook service with its own connection and quick retries. `options` are further settings."""
    chosen = Settings(**{**settings.model_dump(exclude_unset=True), **_QUICK, **options})
    bus = await connect(chosen, name="webhooks", wait=WAIT_S, leader_reads=False)
    stop = asyncio.Event()
    running = asyncio.create_task(WebhookService(bus, chosen, SystemClock()).run(stop))
    try:
        yield
        assert not running.done(), running
    finally:
        stop.set()
        async with asyncio.timeout(WAIT_S):
            await running
        await bus.close()
