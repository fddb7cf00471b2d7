"""Send a file or a range of a file in pieces, with the digest of the file as the entity tag (RFC 9110)."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import TypeAlias
from urllib.parse import quote

from starlette.responses import Response, StreamingResponse

from pointsman.errors import ContractError
from pointsman_schemas.files import File

__all__ = ["RangeError", "download"]

_RANGE = re.compile(r"bytes=(?:(\d{1,18})-(\d{1,18})?|-(\d{1,18}))")
Reader: TypeAlias = Callable[[File], AsyncGenerator[bytes, None]]


class RangeError(ContractError):
    """The range begins after the end of the file.

    Args:
        size: The size of the file, in bytes.
    """

    kind = "range_not_satisfiable"

    def __init__(self, size: int) -> None:
        super().__init__(f"the range begins after the end of the file; the file has {size} bytes")
        self.size = size


async def download(file: File, read: Reader, headers: Mapping[str, str], *, media_type: str | None = None) -> Response:
    """Send a file, or the requested range, with headers by which a browser saves the file and does not show it.

    The last piece is sent only after the digest of the whole file has been checked. So the response for a damaged file
    lacks its last piece. The digest of a range is not checked.

    Args:
        file: The file.
        read: Reads the pieces of a file, and then checks the digest.
        headers: The headers of the request, with names in lower case.
        media_type: The media type of the response. Default: the media type of the file.

    Returns:
        The response: 200 for the whole file, 206 for a range, or 304 for a file that the client already has.

    Raises:
        RangeError: The range begins after the end of the file.
        BodyLostError: The file was removed from the store.
    """
    etag = f'"{file.sha256}"'
    sent = {
        "etag": etag,
        "accept-ranges": "bytes",
        "cache-control": "private, no-cache",
        "content-disposition": f"attachment; filename*=UTF-8''{quote(file.name, safe='')}",
        "x-content-type-options": "nosniff",
    }
    if _has(headers.get("if-none-match", ""), etag):
        return Response(status_code=304, headers=sent)
    begin, end = 0, file.size
    status = 200
    if "range" in headers and headers.get("if-range", etag) == etag:
        found = _parse_range(headers["range"], file.size)
        if found is not None:
            begin, end = found
            status = 206
            sent["content-range"] = f"bytes {begin}-{end - 1}/{file.size}"
    sent["content-length"] = str(end - begin)
    pieces = _checked(file, read) if status == 200 else _part(file, read, begin, end)
    # Read the first piece before the response begins. So the response for a lost file is an error, and not incomplete.
    first = await anext(pieces, b"")
    return StreamingResponse(_following(first, pieces), status, sent, media_type or file.media_type)


def _has(given: str, etag: str) -> bool:
    """Return True if a list of entity tags contains a tag, in strong or weak form."""
    return etag in [each.strip().removeprefix("W/") for each in given.split(",")] or given.strip() == "*"


def _parse_range(given: str, size: int) -> tuple[int, int] | None:
    """Return the position of the first byte of a range, and the position after the last byte.

    Returns:
        The positions; None if the header is not one range of bytes. The whole file is then sent.

    Raises:
        RangeError: The range begins after the end of the file.
    """
    found = _RANGE.fullmatch(given.strip())
    if found is None:
        return None
    first, last, suffix = found.groups()
    if suffix is not None:
        if not int(suffix) or not size:
            raise RangeError(size)
        return max(0, size - int(suffix)), size
    if last is not None and int(last) < int(first):
        return None
    if int(first) >= size:
        raise RangeError(size)
    return int(first), size if last is None else min(size, int(last) + 1)


async def _checked(file: File, read: Reader) -> AsyncGenerator[bytes, None]:
    """Yield each piece when the next piece has arrived, and the last piece when the reader has ended.

    The reader checks the digest after the last piece, and raises an error if the digest is wrong. So the last piece of
    a damaged file is not sent.
    """
    waiting = b""
    async with aclosing(read(file)) as pieces:
        async for piece in pieces:
            if waiting:
                yield waiting
            waiting = piece
    if waiting:
        yield waiting


async def _part(file: File, read: Reader, begin: int, end: int) -> AsyncGenerator[bytes, None]:
    """Yield the pieces of a range."""
    at = 0
    async with aclosing(read(file)) as pieces:
        async for piece in pieces:
            part = piece[max(0, begin - at) : end - at]
            at += len(piece)
            if part:
                yield part
            if at >= end:
                return


async def _following(first: bytes, rest: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(rest):
        if first:
            yield first
        async for piece in rest:
            yield piece
