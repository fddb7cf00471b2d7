"""Store the files of a conversation, and collect the files for a request."""

from __future__ import annotations

import mimetypes
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import PurePath

from pointsman.gateway.callers import Caller
from pointsman.gateway.context import Context
from pointsman.gateway.files.uploads import expires_at, store_bytes, usable_files
from pointsman.gateway.openai.messages import Message
from pointsman.gateway.openai.parts import FilePart
from pointsman_schemas.files import File

__all__ = ["files_of"]

_MAX_FILES = 20  # largest number of files that are sent with a request; equal to the default of `Limits.files`


async def files_of(context: Context, caller: Caller, messages: Sequence[Message]) -> list[File]:
    """Store the files of a conversation, and return the newest files. Rename a file whose name is already used.

    Args:
        context: The parts of the gateway.
        caller: The caller.
        messages: The messages, oldest first.

    Returns:
        The files, the newest first.

    Raises:
        NotFoundError: A message names an upload that does not exist or belongs to a different caller.
        ProblemError: A message names an upload that is too old for a new request.
    """
    found: dict[str, File] = {}
    for message in reversed(messages):
        for part in message.files:
            file = await _stored(context, caller, part)
            if file is None or file.sha256 in [each.sha256 for each in found.values()]:
                continue
            if len(found) == _MAX_FILES:
                return list(found.values())
            file = file.model_copy(update={"name": _unused_name(file.name, found)})
            found[file.name] = file
    return list(found.values())


async def _stored(context: Context, caller: Caller, part: FilePart | File) -> File | None:
    if isinstance(part, File):  # an old file of an earlier turn is omitted, because retention can remove it meanwhile
        stored = await context.files.find(part.owner, part.sha256)
        return part if stored is not None and datetime.now(UTC) < expires_at(stored) else None
    if part.content is None:
        (file,) = await usable_files(context.files, caller, [part.id])
        return file
    name = part.name or f"file{mimetypes.guess_extension(part.media_type) or ''}"
    return await store_bytes(context.files, caller, name, part.media_type, part.content)


def _unused_name(name: str, taken: Mapping[str, File]) -> str:
    """Return the first unused name of `page.png`, `page-2.png`, `page-3.png` and so on."""
    path = PurePath(name)
    tried, number = name, 1
    while tried in taken:
        number += 1
        ending = f"-{number}{path.suffix}"
        tried = f"{path.stem[: 255 - len(ending)]}{ending}"
    return tried
