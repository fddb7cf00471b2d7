"""A dashboard on a memory bus, and data to show in it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from pointsman.bus.memory.bus import MemoryBroker, MemoryBus
from pointsman.client.client import Client
from pointsman.ports.bus import Bus
from pointsman.settings import Settings
from pointsman.web.dashboard import Dashboard
from pointsman.web.users import Users
from pointsman_schemas.envelope import Envelope, encode
from pointsman_schemas.events import AttemptError, DeadLetter, Event
from pointsman_schemas.strict_json import dump
from support.history import TEAM, WORKFLOW, at
from support.waiting import until

NASTY = "<img src=x onerror=alert(1)>\u2028</script>\n\ndata: forged\nid: 99"


def lasting_broker() -> MemoryBroker:
    """Return a broker on which a card lives for three minutes, because a test announces its cards only once."""
    return MemoryBroker(heartbeat=60.0)


@asynccontextmanager
async def watching(bus: MemoryBus, users: Users | None = None, **settings: Any) -> AsyncIterator[Dashboard]:
    dashboard = await Dashboard.open(Client(bus), Settings(**settings), users=users)
    folding = asyncio.create_task(dashboard.run_projections())
    try:
        yield dashboard
    finally:
        folding.cancel()
        with suppress(asyncio.CancelledError):
            await folding


async def publish(bus: Bus, subject: str, event: Event) -> int:
    envelope = Envelope(id=subject, type=event.event_type, source="test", time=at(0))
    return await bus.publish(subject, dump(event), encode(envelope))


def letter(name: str, message: str = "no reason") -> DeadLetter:
    return DeadLetter(
        id=name, origin=TEAM, workflow_id=WORKFLOW, cause=AttemptError(kind="undecodable", message=message),
        attempts=1, subject=f"pointsman.control.{TEAM}.{WORKFLOW}.cancel.ada.c", body="e30=", at=at(0),
    )  # fmt: skip


async def until_read(dashboard: Dashboard, sequence: int) -> None:
    async def read() -> bool:
        return dashboard.index.sequence >= sequence

    await until(read)
