"""A TCP proxy that can be a bad network: cut, slow, silent in both directions or in one. It can record the data."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import TracebackType

__all__ = ["Proxy"]

_CHUNK = 65_536


class Proxy:
    """`async with Proxy("127.0.0.1", port) as proxy`: `proxy.url` leads to this port, with faults.

    `delay` is in seconds, for each piece of data in each direction. With `record`, all forwarded data is
    kept.
    """

    def __init__(self, host: str, port: int, *, record: bool = False) -> None:
        self.delay = 0.0
        self.accepted = 0
        """Connections so far."""
        self.wire: list[tuple[bytearray, bytearray]] = []
        """For each connection, the bytes from and to its client."""
        self._record = record
        self._to = host, port
        self._upward = asyncio.Event()
        self._downward = asyncio.Event()
        self._refusing = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.heal()

    @property
    def open(self) -> int:
        """Connections that their client has not left."""
        return len(self._tasks)

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def black_hole(self, *, upward: bool = True, downward: bool = True) -> None:
        """Read and drop all bytes: to the server (`upward`), to the client, or both. Neither side is
        informed."""
        if upward:
            self._upward.clear()
        if downward:
            self._downward.clear()

    def cut(self) -> None:
        """End every connection, and each new one at once."""
        self._refusing = True
        for writer in tuple(self._writers):
            writer.transport.abort()

    def heal(self) -> None:
        """Be a good network again. Deliver held data, as TCP does when a path returns in time."""
        self._refusing = False
        self.delay = 0.0
        self._upward.set()
        self._downward.set()

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._called, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        self.heal()  # so that nothing waits any more
        self.cut()
        await asyncio.gather(*self._tasks)

    async def _called(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        there: asyncio.StreamWriter | None = None
        self._writers.add(writer)
        try:
            if self._refusing:
                return
            from_there, there = await asyncio.open_connection(*self._to)
            self._writers.add(there)
            kept = bytearray(), bytearray()
            self.wire.append(kept)
            ways = [
                self._pass_on(reader, there, self._upward, kept[0]),
                self._pass_on(from_there, writer, self._downward, kept[1]),
            ]
            _, others = await asyncio.wait(map(asyncio.ensure_future, ways), return_when=asyncio.FIRST_COMPLETED)
            for other in others:
                other.cancel()
            await asyncio.gather(*others, return_exceptions=True)
        except OSError:
            pass  # no server answers: the caller's connection ends, too
        finally:
            for one in (writer, there):
                if one is not None:
                    self._writers.discard(one)
                    one.transport.abort()

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, open: asyncio.Event, kept: bytearray
    ) -> None:
        """Copy until one side closes; then close the other, also if data is held."""
        with suppress(ConnectionError):
            while data := await reader.read(_CHUNK):
                if self.delay:
                    await asyncio.sleep(self.delay)
                await open.wait()
                if self._record:
                    kept += data
                writer.write(data)
                await writer.drain()
