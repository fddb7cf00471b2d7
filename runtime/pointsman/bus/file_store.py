"""Store files in the object store of a namespace, and read files. Only one piece of a file is in memory at a time.

A file is an object in the form of NATS object stores (ADR-20). The name of the object contains its owner, such as a
workflow, and the SHA-256 of its content. The description is published after the last chunk, so a file with a
description is whole. As with large bodies (`claim_check`), retention deletes an object that is older than every message
that could refer to the object.
"""

from __future__ import annotations

import secrets
from base64 import urlsafe_b64encode
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import TYPE_CHECKING

from pydantic import ValidationError

from pointsman.bus.claim_check import CHUNK_BYTES, REUSE_MAX_AGE_S, ObjectInfo
from pointsman.errors import BodyLostError, ConflictError, ContractError
from pointsman_schemas.files import File

if TYPE_CHECKING:
    from pointsman.ports.bus import Bus, StoredMessage
    from pointsman.ports.clock import Clock

__all__ = ["FileStore", "FileWriter", "StoredFile"]


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file in the store.

    Attributes:
        file: The reference to the file, with the name and the media type under which it was stored.
        at: The time at which the file was stored.
    """

    file: File
    at: datetime


class FileStore:
    """The files of a namespace.

    Args:
        bus: The bus, after `set_up`.
        bucket: The bucket of the namespace.
        clock: The clock.
        max_bytes: Maximum size of a file, in bytes.
    """

    def __init__(self, bus: Bus, bucket: str, clock: Clock, max_bytes: int) -> None:
        self._bus = bus
        self._bucket = bucket
        self._clock = clock
        self._max_bytes = max_bytes

    def create(self, name: str, media_type: str, owner: str) -> FileWriter:
        """Begin a file.

        Args:
            name: The name of the file, without a folder.
            media_type: The media type.
            owner: The owner of the file, such as a workflow or a batch, or `shared`. Forgetting a workflow deletes its
                files.

        Returns:
            The writer. The file can be read after the writer's `finish`.
        """
        file = File(name=name, media_type=media_type, size=0, sha256="0" * 64, owner=owner)
        return FileWriter(self._bus, self._bucket, self._clock, self._max_bytes, file)

    async def find(self, owner: str, digest: str) -> StoredFile | None:
        """Find a file by its owner and its content.

        Args:
            owner: The owner of the file, as in `create`.
            digest: The SHA-256 of the content, in lower-case hexadecimal digits.

        Returns:
            The file; None if the file does not exist.

        Raises:
            BusUnavailableError: The broker does not answer.
        """
        stored = await self._bus.last("artifacts", _info_subject(self._bucket, f"{owner}-{digest}"))
        if stored is None:
            return None
        try:
            info = ObjectInfo.model_validate_json(stored.body)
            if info.deleted:
                return None
            named = info.metadata
            file = File(
                name=named["name"], media_type=named["media_type"], size=info.size, sha256=digest, owner=owner
            )  # fmt: skip
        except (ValidationError, KeyError):  # another program stored the object
            return None
        return StoredFile(file, stored.at)

    async def read(self, file: File) -> AsyncGenerator[bytes, None]:
        """Read a file in pieces, and check its size and digest.

        The check ends after the last piece. So a caller that must not use a damaged file must read all pieces before
        using the first piece.

        Args:
            file: The file.

        Yields:
            The pieces, in order.

        Raises:
            BodyLostError: The file was removed, was never stored, or is damaged.
            BusUnavailableError: The broker does not answer.
        """
        description = _parse(file, await self._bus.last("artifacts", _info_subject(self._bucket, file.object_name)))
        digest, size = sha256(), 0
        chunks = self._bus.read("artifacts", f"$O.{self._bucket}.C.{description.nuid}")
        async for chunk in chunks:
            size += len(chunk.body)
            if size > file.size:
                break
            digest.update(chunk.body)
            yield chunk.body
        if size != file.size or digest.hexdigest() != file.sha256:
            raise BodyLostError(
                f"the file {file.name!r} is damaged: {size} bytes were read, which differ from the stored file"
            )


class FileWriter:
    """A file that is being written. `write` stores chunks at once; `finish` stores the description of the file.

    Args:
        bus: The bus.
        bucket: The bucket.
        clock: The clock.
        max_bytes: Maximum size of the file, in bytes.
        file: The name, the media type and the owner, which the caller has checked.
    """

    def __init__(self, bus: Bus, bucket: str, clock: Clock, max_bytes: int, file: File) -> None:
        self._file = file
        self._bus = bus
        self._bucket = bucket
        self._clock = clock
        self._max_bytes = max_bytes
        self._nuid = secrets.token_hex(11)
        self._step = min(CHUNK_BYTES, bus.max_payload)
        self._digest = sha256()
        self._size = self._chunks = 0
        self._rest = bytearray()

    async def write(self, data: bytes) -> None:
        """Store a piece of the file.

        Args:
            data: The piece, of any length.

        Raises:
            ContractError: The file is larger than the maximum size.
            BusUnavailableError: The broker does not answer.
        """
        self._size += len(data)
        if self._size > self._max_bytes:
            raise ContractError(
                f"the file {self._file.name!r} is larger than {self._max_bytes} bytes (POINTSMAN_MAX_FILE_BYTES); "
                "nothing was sent; raise the setting or give a smaller file"
            )
        self._digest.update(data)
        self._rest += data
        while len(self._rest) >= self._step:
            await self._publish(bytes(self._rest[: self._step]))
            del self._rest[: self._step]

    async def finish(self) -> File:
        """Store the description. Readers can find the file afterwards.

        Returns:
            The reference to the file.

        Raises:
            BusUnavailableError: The broker does not answer.
        """
        if self._rest:
            await self._publish(bytes(self._rest))
            self._rest.clear()
        file = self._file.model_copy(update={"size": self._size, "sha256": self._digest.hexdigest()})
        subject = _info_subject(self._bucket, file.object_name)
        there = await self._bus.last("artifacts", subject)
        if there is not None and self._clock.now() - there.at < timedelta(seconds=REUSE_MAX_AGE_S) / 2:
            with suppress(BodyLostError):
                if await self._is_readable(file):
                    return file
        description = ObjectInfo(
            name=file.object_name,
            bucket=self._bucket,
            nuid=self._nuid,
            size=file.size,
            chunks=self._chunks,
            digest=f"SHA-256={urlsafe_b64encode(self._digest.digest()).decode()}",
            mtime=self._clock.now().isoformat(),
            options={"max_chunk_size": self._step},
            metadata={"name": file.name, "media_type": file.media_type},
        )
        with suppress(ConflictError):  # another process has stored the same content
            text = description.model_dump_json().encode()
            await self._bus.publish(subject, text, {}, expect=there.sequence if there else 0)
        return file

    async def _is_readable(self, file: File) -> bool:
        """Return True if all chunks of the stored object exist. The description can exist although chunks were lost.

        Raises:
            BodyLostError: A chunk is missing or damaged.
        """
        store = FileStore(self._bus, self._bucket, self._clock, self._max_bytes)
        async with aclosing(store.read(file)) as pieces:
            async for _ in pieces:
                pass
        return True

    async def _publish(self, chunk: bytes) -> None:
        await self._bus.publish(f"$O.{self._bucket}.C.{self._nuid}", chunk, {})
        self._chunks += 1


def _parse(file: File, stored: StoredMessage | None) -> ObjectInfo:
    if stored is None:
        raise BodyLostError(f"the file {file.name!r} is not in the object store: it was removed, or was never stored")
    try:
        description = ObjectInfo.model_validate_json(stored.body)
    except ValidationError:
        raise BodyLostError(f"the description of the file {file.name!r} cannot be read; store the file again") from None
    if description.deleted:
        raise BodyLostError(f"the file {file.name!r} was deleted from the object store")
    return description


def _info_subject(bucket: str, name: str) -> str:
    return f"$O.{bucket}.M.{urlsafe_b64encode(name.encode()).decode()}"
