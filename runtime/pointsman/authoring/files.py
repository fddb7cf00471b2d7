"""Files of an attempt. The agent reads files of the request and of earlier tasks, and returns new files."""

from __future__ import annotations

import asyncio
import mimetypes
import os
import tempfile
from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import BinaryIO, Protocol, TypeAlias, cast

from pointsman.errors import ConfigurationError, TaskError
from pointsman_schemas.events import ErrorKind
from pointsman_schemas.files import File

__all__ = ["ContextFile", "FileContent", "FileSource", "FileTransfer", "Files", "guess_media_type", "save_pieces"]

FileContent: TypeAlias = "bytes | Path | BinaryIO | Iterable[bytes] | AsyncIterable[bytes]"
"""The content of a new file: bytes, the path of a file, an open binary file, or pieces of bytes."""

_PIECE_BYTES = 131_072
_DEFAULT_READ_BYTES = 32 * 1024 * 1024
"""Largest file that `read` returns by default, in bytes. A larger file must be streamed or saved."""


class FileSource(Protocol):
    """A source of the content of files."""

    def read(self, file: File) -> AsyncGenerator[bytes, None]:
        """Read a file in pieces."""
        ...


class FileTransfer(FileSource, Protocol):
    """The part of the object store that an attempt uses. Calls may come from any event loop."""

    async def store(self, name: str, media_type: str, content: FileContent) -> File:
        """Store a file, and return the reference to it."""
        ...


class ContextFile:
    """A file that an attempt may read.

    Args:
        file: The reference to the file.
        source: The source of the file's content; None in a test without files.
        origin: `request`, or the id of the task that returned the file.
    """

    def __init__(self, file: File, source: FileSource | None, origin: str) -> None:
        self.file = file
        self.origin = origin
        self._source = source

    @property
    def name(self) -> str:
        """Name of the file, without a folder."""
        return self.file.name

    @property
    def media_type(self) -> str:
        """Media type, such as `application/pdf`."""
        return self.file.media_type

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self.file.size

    @property
    def sha256(self) -> str:
        """SHA-256 of the content, in lower-case hexadecimal digits."""
        return self.file.sha256

    def stream(self) -> AsyncGenerator[bytes, None]:
        """Read the file in pieces. The whole file is never in memory.

        Returns:
            The pieces. After the last piece, an error is raised if the size or the digest is wrong.

        Raises:
            ConfigurationError: The attempt has no object store.
        """
        if self._source is None:
            raise ConfigurationError(
                f"the file {self.name!r} cannot be read outside a worker; run the agent in a worker"
            )
        return self._source.read(self.file)

    async def read(self, max_bytes: int = _DEFAULT_READ_BYTES) -> bytes:
        """Read the whole file, and check its digest.

        Args:
            max_bytes: Largest size that is read, in bytes.

        Returns:
            The content.

        Raises:
            TaskError: The file is larger than `max_bytes`.
            BodyLostError: The file was removed, or is damaged.
        """
        if self.size > max_bytes:
            raise TaskError(
                f"the file {self.name!r} has {self.size} bytes; at most {max_bytes} are read at once; stream the file",
                kind=ErrorKind.OVERSIZE,
            )
        async with aclosing(self.stream()) as pieces:
            return b"".join([piece async for piece in pieces])

    async def save(self, path: Path | str) -> Path:
        """Save the file, and check its digest. A damaged file is not saved.

        Args:
            path: The path of the new file, or an existing folder. In a folder, the file keeps its name.

        Returns:
            The path of the saved file.

        Raises:
            BodyLostError: The file was removed, or is damaged.
            OSError: The file cannot be written.
        """
        target = Path(path)
        if await asyncio.to_thread(target.is_dir):
            target = target / self.name
        await save_pieces(self.stream(), target)
        return target


class Files(Mapping[str, ContextFile]):
    """The files of an attempt by name, and the files that the agent returns.

    If several files have the same name, the key of the first file is the name. The key of each further file is its task
    and the name, such as `scan/page.png`.

    Args:
        files: The files that the attempt may read.
        transfer: The object store; None in a test without files.
    """

    def __init__(self, files: Sequence[ContextFile], transfer: FileTransfer | None) -> None:
        self._files: dict[str, ContextFile] = {}
        for each in files:
            name = each.name if each.name not in self._files else f"{each.origin}/{each.name}"
            self._files.setdefault(name, each)
        self._transfer = transfer
        self.returned: list[File] = []
        """The files that the attempt returns with its result."""

    def __getitem__(self, name: str) -> ContextFile:
        try:
            return self._files[name]
        except KeyError:
            known = ", ".join(self._files) or "none"
            raise KeyError(f"there is no file {name!r}; the files are: {known}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    async def add(self, name: str, content: FileContent, *, media_type: str = "") -> File:
        """Store a file that the agent returns. The workflow's outcome lists the file, and later tasks may read it.

        Args:
            name: Name of the file, without a folder, unique among the returned files.
            content: Bytes, a path, an open binary file, or pieces of bytes.
            media_type: Media type. Default: guessed from the ending of the name.

        Returns:
            The reference to the file.

        Raises:
            ConfigurationError: The attempt has no object store, or a file of this name was added with other content.
            ContractError: The name or the media type is not valid, or the file is too large.
        """
        if self._transfer is None:
            raise ConfigurationError(f"the file {name!r} cannot be stored outside a worker; run the agent in a worker")
        file = await self._transfer.store(name, media_type or guess_media_type(name), content)
        same = [each for each in self.returned if each.name == file.name]
        if same and same != [file]:
            raise ConfigurationError(f"the file {name!r} was added twice with different content; give it another name")
        if not same:
            self.returned.append(file)
        return file


def guess_media_type(name: str) -> str:
    """Return the media type by the ending of a name.

    Args:
        name: The name of a file.

    Returns:
        The media type; `application/octet-stream` for an unknown ending.
    """
    return (mimetypes.guess_type(name)[0] or "application/octet-stream").lower()


async def pieces_of(content: FileContent) -> AsyncGenerator[bytes, None]:
    """Read the content of a new file in pieces.

    Args:
        content: The content.

    Yields:
        The pieces.
    """
    if isinstance(content, bytes | bytearray | memoryview):
        data = memoryview(content)
        for start in range(0, len(data), _PIECE_BYTES):
            yield bytes(data[start : start + _PIECE_BYTES])
    elif isinstance(content, Path):
        with content.open("rb") as opened:
            while piece := opened.read(_PIECE_BYTES):
                yield piece
    elif isinstance(content, AsyncIterable):
        async for piece in content:
            yield piece
    elif callable(read := getattr(content, "read", None)):
        while piece := cast("bytes", read(_PIECE_BYTES)):
            yield piece
    else:
        for piece in content:
            yield piece


async def save_pieces(pieces: AsyncGenerator[bytes, None], target: Path) -> None:
    """Write pieces to a file that only its owner can read. The file appears when all pieces are written.

    Args:
        pieces: The pieces. A damaged file raises an error after the last piece.
        target: The path of the file.
    """
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:100]}.")
    try:
        with os.fdopen(handle, "wb") as output:
            async with aclosing(pieces):
                async for piece in pieces:
                    output.write(piece)
        os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
