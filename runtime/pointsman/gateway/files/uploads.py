"""Receive files in pieces, and find the uploads of a caller.

The id of an upload identifies an object in the store. The id contains a digest of the caller, the name and the media
type, and then a digest of the content. To check that an upload belongs to a caller, a gateway reads the object and
computes the first digest again, so no table of uploads is needed. A repeated upload has the same id.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from pointsman.authoring.files import guess_media_type
from pointsman.bus.claim_check import REUSE_MAX_AGE_S
from pointsman.bus.file_store import FileStore, StoredFile
from pointsman.errors import NotFoundError
from pointsman.gateway.callers import Caller
from pointsman.gateway.models import FILE_ID_PATTERN
from pointsman.gateway.problems import ProblemError
from pointsman_schemas.files import MEDIA_TYPE_PATTERN, File
from pointsman_schemas.ids import derive_id

__all__ = ["expires_at", "find_upload", "receive_file", "store_bytes", "usable_files"]

_UNNAMED = "file"
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_UNKNOWN_TYPES = ("", "application/octet-stream")


def expires_at(stored: StoredFile) -> datetime:
    """Return the time after which no new request may use an upload. Retention may then remove the file.

    Args:
        stored: The upload.
    """
    return stored.at + timedelta(seconds=REUSE_MAX_AGE_S)


async def find_upload(store: FileStore, caller: Caller, id: str) -> StoredFile:
    """Find an upload of a caller.

    Args:
        store: The files of the namespace.
        caller: The caller.
        id: The id of the upload.

    Returns:
        The upload.

    Raises:
        NotFoundError: The caller has no upload with this id.
    """
    if re.fullmatch(FILE_ID_PATTERN, id):
        owner, _, digest = id.rpartition("-")
        found = await store.find(owner, digest)
        if found is not None and owner == _owner(caller, found.file.name, found.file.media_type):
            return found
    raise NotFoundError(f"you have no file {id[:120]!r}; upload the file with POST /v1/files")


async def usable_files(store: FileStore, caller: Caller, ids: Iterable[str]) -> Sequence[File]:
    """Return the uploads that a request uses.

    Args:
        store: The files of the namespace.
        caller: The caller.
        ids: The ids of the uploads.

    Returns:
        The files.

    Raises:
        NotFoundError: The caller has no upload with one of these ids.
        ProblemError: An upload is too old for a new request.
    """
    files: list[File] = []
    for id in ids:
        found = await find_upload(store, caller, id)
        if datetime.now(UTC) > expires_at(found):
            raise ProblemError(410, "file_expired", f"the file {found.file.name!r} has expired; upload the file again")
        files.append(found.file)
    return files


async def store_bytes(store: FileStore, caller: Caller, name: str, media_type: str, content: bytes) -> File:
    """Store a file whose content is in a request.

    Args:
        store: The files of the namespace.
        caller: The caller.
        name: The name of the file.
        media_type: The media type; empty if the type is unknown.
        content: The content.

    Returns:
        The reference to the file.
    """
    writer = _Writer(store, caller, name, media_type, len(content))
    await writer.write(content)
    return await writer.finish()


async def receive_file(
    store: FileStore, caller: Caller, body: AsyncIterator[bytes], *, content_type: str, name: str, max_bytes: int
) -> File:
    """Store the file in the body of a request, piece by piece.

    Args:
        store: The files of the namespace.
        caller: The caller.
        body: The pieces of the body.
        content_type: The content type of the request. With `multipart/form-data`, the part `file` is the file.
        name: The name of the file, if the body is the file.
        max_bytes: Largest size of a file, in bytes.

    Returns:
        The reference to the file.

    Raises:
        ProblemError: The file is too large, or the form has no file or several files.
    """
    kind, options = parse_options_header(content_type)
    if kind != b"multipart/form-data":
        writer = _Writer(store, caller, name, kind.decode("latin-1"), max_bytes)
        async for piece in body:
            await writer.write(piece)
        return await writer.finish()
    form: _Writer | None = None
    file: File | None = None
    async with aclosing(_parts(body, options.get(b"boundary", b""))) as events:
        async for event in events:
            if event.headers is not None:
                _, fields = parse_options_header(event.headers.get("content-disposition", ""))
                if fields.get(b"name") != b"file":
                    continue
                if file is not None:
                    raise ProblemError(422, "several_files", "the form has several files; send one file in a request")
                given = fields.get(b"filename", b"").decode("utf-8", "replace")
                form = _Writer(store, caller, given, event.headers.get("content-type", ""), max_bytes)
            elif form is not None and event.data is not None:
                await form.write(event.data)
            elif form is not None:
                file, form = await form.finish(), None
    if file is None:
        raise ProblemError(422, "no_file", "the form has no complete part `file`; send the file in this part")
    return file


def _owner(caller: Caller, name: str, media_type: str) -> str:
    return f"file-{derive_id('file', caller.name, name, media_type)}"


class _Writer:
    """Writes one file of a caller."""

    def __init__(self, store: FileStore, caller: Caller, name: str, media_type: str, max_bytes: int) -> None:
        chosen = _plain_name(name)
        kind = media_type.partition(";")[0].strip().lower()
        if kind in _UNKNOWN_TYPES or re.fullmatch(MEDIA_TYPE_PATTERN, kind) is None:
            kind = guess_media_type(chosen)
        self._writer = store.create(chosen, kind, _owner(caller, chosen, kind))
        self._left = self._max_bytes = max_bytes

    async def write(self, data: bytes) -> None:
        self._left -= len(data)
        if self._left < 0:
            raise ProblemError(
                413,
                "file_too_large",
                f"the file has more than {self._max_bytes} bytes; send less, or raise POINTSMAN_MAX_FILE_BYTES",
                headers={"connection": "close"},
            )
        await self._writer.write(data)

    async def finish(self) -> File:
        return await self._writer.finish()


def _plain_name(name: str) -> str:
    """Return the name of a file without folders and control characters."""
    plain = _FORBIDDEN.sub("", re.split(r"[/\\]", name)[-1])[:255]
    return plain if plain not in ("", ".", "..") else _UNNAMED


class _Event(NamedTuple):
    """A step of a form: the headers of a new part, a piece of the part, or (if both fields are None) its end."""

    headers: Mapping[str, str] | None = None
    data: bytes | None = None


async def _parts(body: AsyncIterator[bytes], boundary: bytes) -> AsyncGenerator[_Event, None]:
    """Yield the steps of a form as the body arrives. The parser limits the size of a part's headers."""
    events: list[_Event] = []
    headers: dict[str, str] = {}
    name, value = bytearray(), bytearray()

    def header_field(data: bytes, start: int, end: int) -> None:
        name.extend(data[start:end])

    def header_value(data: bytes, start: int, end: int) -> None:
        value.extend(data[start:end])

    def header_end() -> None:
        headers[name.decode("latin-1").lower()] = value.decode("latin-1")
        name.clear()
        value.clear()

    def headers_finished() -> None:
        events.append(_Event(headers=dict(headers)))
        headers.clear()

    def part_data(data: bytes, start: int, end: int) -> None:
        events.append(_Event(data=data[start:end]))

    def part_end() -> None:
        events.append(_Event())

    try:
        parser = MultipartParser(
            boundary,
            {
                "on_header_field": header_field,
                "on_header_value": header_value,
                "on_header_end": header_end,
                "on_headers_finished": headers_finished,
                "on_part_data": part_data,
                "on_part_end": part_end,
            },
        )
        async for piece in body:
            parser.write(piece)
            taken, events[:] = list(events), []
            for event in taken:
                yield event
    except FormParserError as error:
        raise ProblemError(400, "invalid_form", f"the body is not a multipart form: {str(error)[:200]}") from None
