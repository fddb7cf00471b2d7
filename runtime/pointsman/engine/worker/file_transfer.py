"""Read and store the files of attempts on the loop of the bus, because agents may run on another event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from pointsman.authoring.files import FileContent, pieces_of
from pointsman.bus.file_store import FileStore
from pointsman.engine.worker.executors import run_on_loop
from pointsman_schemas.files import File

__all__ = ["WorkerFiles"]


class WorkerFiles:
    """`FileTransfer` of an attempt. Each piece is read or stored on the loop that ran when this object was created.

    Args:
        store: The files of the namespace.
        workflow: The workflow, which owns the files that agents return.
    """

    def __init__(self, store: FileStore, workflow: str) -> None:
        self._store = store
        self._workflow = workflow
        self._loop = asyncio.get_running_loop()

    async def read(self, file: File) -> AsyncGenerator[bytes, None]:
        pieces = self._store.read(file)
        try:
            while (piece := await run_on_loop(self._loop, _next(pieces))) is not None:
                yield piece
        finally:
            await run_on_loop(self._loop, pieces.aclose())

    async def store(self, name: str, media_type: str, content: FileContent) -> File:
        writer = self._store.create(name, media_type, self._workflow)
        async with aclosing(pieces_of(content)) as pieces:
            async for piece in pieces:
                await run_on_loop(self._loop, writer.write(piece))
        return await run_on_loop(self._loop, writer.finish())


async def _next(pieces: AsyncGenerator[bytes, None]) -> bytes | None:
    return await anext(pieces, None)
