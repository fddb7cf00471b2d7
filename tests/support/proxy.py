"""A TCP proxy that imitates a bad network: cut, slow, or silent in one or both directions. It can record the data."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import TracebackType

from support.servers import stop_accepting

__all__ = ["Proxy"]

_CHUNK = 65_536


class Proxy:
    """Use `async with Proxy("127.0.0.1", port) as proxy`. Connections to `proxy.url` are forwarded to this port.

    `delay` is in seconds, for each piece of data in each direction. `record` stores all forwarded data.
    """

    def __init__(self, host: str, port: int, *, record: bool = False) -> None:
        self.delay = 0.0
        self.accepted = 0
        """The number of accepted connections."""
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
        """The number of open connections."""
        return len(self._tasks)

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def black_hole(self, *, upward: bool = True, downward: bool = True) -> None:
        """Stop the data to the server (`upward`), to the client (`downward`), or both, but close no connection."""
        if upward:
            self._upward.clear()
        if downward:
            self._downward.clear()

    def cut(self) -> None:
        """Close every connection. Close each new connection at once."""
        self._refusing = True
        for writer in tuple(self._writers):
            writer.transport.abort()

    def heal(self) -> None:
        """End all faults. Deliver held data, as TCP does when a network recovers in time."""
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
        await stop_accepting(self._server)
        self._server.close()
        self.heal()  # release held data, so that no task blocks
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
            pass  # the server is unreachable: close the client's connection, too
        finally:
            for one in (writer, there):
                if one is not None:
                    self._writers.discard(one)
                    one.transport.abort()

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, open: asyncio.Event, kept: bytearray
    ) -> None:
        """Copy until one side closes. Then close the other side, even if data is held."""
        with suppress(ConnectionError):
            while data := await reader.read(_CHUNK):
                if self.delay:
                    await asyncio.sleep(self.delay)
                await open.wait()
                if self._record:
                    kept += data
                writer.write(data)
                await writer.drain()
