"""A broker whose streams can be restored from an earlier copy."""

from __future__ import annotations

import shutil
from pathlib import Path

from pointsman.bus.embedded_server import EmbeddedBroker
from pointsman.settings import Settings
from support.cluster import free_ports

__all__ = ["Store"]


class Store:
    """A broker with its own folder."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._copy = folder / "store", folder / "copy"
        self._port = free_ports(1)[0]
        self._broker = EmbeddedBroker(self._folder, port=self._port)

    async def start(self) -> Settings:
        await self._broker.start()
        return Settings(url=self._broker.url, ack_wait=1.0, heartbeat=2.0, shutdown_grace=0.2)

    async def restart(self, *, back: str | None = None, copy: bool = False) -> None:
        """Stop the broker, copy its store or restore the streams that match `back`, and start the broker."""
        await self._broker.stop()
        if copy:
            shutil.copytree(self._folder, self._copy)
        for kept in self._copy.rglob(f"streams/{back}") if back else ():
            place = self._folder / kept.relative_to(self._copy)
            shutil.rmtree(place)
            shutil.copytree(kept, place)
        self._broker = EmbeddedBroker(self._folder, port=self._port)
        await self._broker.start()

    async def stop(self) -> None:
        await self._broker.stop()
