"""Claim check: store a large body in the object store, then publish a message with the name of the object.

A body is large if the body does not fit into a message. The bus loads the object for its readers, so a reader receives
the body that was published. The name of an object contains its workflow and a digest of its content. So a workflow
stores a body only once, and when a workflow is forgotten, the bodies of other workflows remain.

An object consists of chunks and a description, as in every NATS object store (ADR-20), so any client library can read
the object. But client libraries cannot store an object here, because they use rollup. The bucket refuses rollup,
because a publisher could empty the bucket by rollup. A program that stores an object must publish the chunks, then the
description, without rollup.
"""

from __future__ import annotations

import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from hashlib import sha256
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pointsman.bus.validation import MAX_HEADER_BYTES, check_size, header_size
from pointsman.errors import ConflictError, ContractError
from pointsman.ports.bus import Bus, StoredMessage
from pointsman.ports.clock import Clock
from pointsman.util.lazy_import import structlog
from pointsman_schemas.claim_check import DATAREF_HEADER, Claim
from pointsman_schemas.ids import stable_digest
from pointsman_schemas.strict_json import describe
from pointsman_schemas.subjects import Subjects

__all__ = [
    "CHUNK_BYTES",
    "REUSE_MAX_AGE_S",
    "ClaimCheckStore",
    "ObjectInfo",
    "ObjectName",
    "object_name",
    "parse_object_name",
]

_log = structlog.get_logger(__name__)

REUSE_MAX_AGE_S = 86_400.0
"""Largest age, in seconds, at which a stored object is used again for a new message. An older object is stored again,
because retention removes an object that is much older than the messages that still exist."""
_LAG_PAUSES_S = (0.1, 0.2, 0.4, 0.8)  # seconds between two reads of an object that a replica might still lack
CHUNK_BYTES = 131_072  # the default of ADR-20


class ObjectInfo(BaseModel):
    """The description of an object. Other client libraries need every field."""

    model_config = ConfigDict(extra="ignore", frozen=True, defer_build=True)

    name: str
    bucket: str
    nuid: str
    size: int = Field(ge=0)
    chunks: int = Field(ge=0)
    digest: str
    mtime: str
    options: dict[str, int] = {}
    metadata: dict[str, str] = {}
    deleted: bool = False


class ObjectName(NamedTuple):
    """The parts of the name of an object.

    Attributes:
        owner: The workflow or the schedule to which the object belongs. If the subject of the message has neither, a
            digest of the subject.
        digest: The SHA-256 of the content, in hexadecimal digits.
    """

    owner: str
    digest: str


class ClaimCheckStore:
    """The object store of a namespace. `bound` is the maximum size of an event in bytes.

    `may_lag` returns True if `bus` reads from replicas. A replica can receive a message before the object of the
    message, so a missing object is then read several times.
    """

    def __init__(
        self, bus: Bus, subjects: Subjects, bound: int, clock: Clock, *, may_lag: Callable[[], bool] = bool
    ) -> None:
        self._bus = bus
        self._subjects = subjects
        self._bucket = subjects.artifacts_bucket
        self._max_body = bound
        self._clock = clock
        self._may_lag = may_lag

    def fits_in_message(self, body: bytes) -> bool:
        """Return True if `body` fits into a message even with the largest headers.

        Most bodies do. The caller then does not have to count the bytes of the headers.
        """
        return len(body) + MAX_HEADER_BYTES <= min(self._bus.max_payload, self._max_body)

    async def replace_large_body(self, subject: str, body: bytes, wire: dict[str, str]) -> tuple[bytes, dict[str, str]]:
        """Store the body if it does not fit into a message on `subject` with the headers `wire`.

        Returns:
            The body and the headers to send. For a large body, the result is an empty body, and headers with a
            reference to the large body. Otherwise the result is the arguments, unchanged.

        Raises:
            OversizeEventError: The message is larger than `bound`, headers included. Nothing was stored.
            PublishOutcomeUnknownError: The broker did not answer. Perhaps the object was stored, but no message refers
                to the object.
        """
        room = min(self._bus.max_payload, self._max_body)
        headers = header_size(wire)
        if headers + len(body) <= room or headers > MAX_HEADER_BYTES:
            return body, wire
        check_size(subject, headers, len(body), self._max_body)
        claim = await self._store_body(subject, body)
        return b"", {**wire, DATAREF_HEADER: claim.encode()}

    async def resolve(self, stored: StoredMessage) -> StoredMessage:
        """Return `stored` with the body to which its headers refer. Without such a header, return `stored` unchanged.

        If the object does not exist or is damaged, return `stored` unchanged, too. `decode` then raises
        `BodyLostError`, because the headers still have the reference.
        """
        if stored.body or (reference := _reference_header(stored.headers)) is None:
            return stored
        try:
            body = await self._load_replicated(Claim.decode(stored.headers[reference]))
        except ContractError as error:
            _log.error("body_lost", subject=stored.subject, sequence=stored.sequence, reason=str(error))
            return stored
        return replace(stored, body=body, headers=_without_header(stored.headers, reference))

    async def _store_body(self, subject: str, body: bytes) -> Claim:
        digest = sha256(body)
        name = object_name(self._subjects, subject, digest.hexdigest())
        claim = Claim(bucket=self._bucket, name=name, size=len(body), sha256=digest.hexdigest())
        subject = self._object_info(claim.name)
        there = await self._bus.last("artifacts", subject)
        fresh = there is not None and self._clock.now() - there.at < timedelta(seconds=REUSE_MAX_AGE_S)
        if fresh and await self._is_complete(claim):
            return claim
        nuid, step = secrets.token_hex(11), min(CHUNK_BYTES, self._bus.max_payload)
        for start in range(0, len(body), step):  # one chunk at a time, because the chunks must be in the body's order
            await self._bus.publish(self._chunks(nuid), body[start : start + step], {})
        description = ObjectInfo(
            name=claim.name,
            bucket=self._bucket,
            nuid=nuid,
            size=len(body),
            chunks=-(-len(body) // step),
            digest=f"SHA-256={urlsafe_b64encode(digest.digest()).decode()}",
            mtime=self._clock.now().isoformat(),
            options={"max_chunk_size": step},
        )
        try:
            text = description.model_dump_json().encode()
            await self._bus.publish(subject, text, {}, expect=there.sequence if there else 0)
        except ConflictError:  # another process has stored the same object; the chunks of this call are removed later
            pass
        return claim

    async def _is_complete(self, claim: Claim) -> bool:
        """Return True if the whole object can be read.

        The description alone is not sufficient. After a purge, or after the broker lost a part of its store, chunks can
        be missing. The check reads the whole object, which takes as long as storing the object again.
        """
        try:
            await self._load_body(claim)
        except ContractError:
            return False
        return True

    async def _load_replicated(self, claim: Claim) -> bytes:
        """Call `_load_body`, and repeat the call if a replica might still lack the object."""
        for pause in _LAG_PAUSES_S if self._may_lag() else ():
            try:
                return await self._load_body(claim)
            except ContractError:
                await self._clock.sleep(pause)
        return await self._load_body(claim)

    async def _load_body(self, claim: Claim) -> bytes:
        """Return the body of an object.

        Raises:
            ContractError: The object does not exist, or differs from the reference.
        """
        if claim.bucket != self._bucket:
            raise ContractError(f"{claim.encode()} is not in {self._bucket}; no other bucket is read")
        if claim.size > self._max_body:
            raise ContractError(f"{claim.encode()} is larger than {self._max_body} bytes, the maximum of this process")
        stored = await self._bus.last("artifacts", self._object_info(claim.name))
        if stored is None:
            raise ContractError(f"{claim.encode()} does not exist: the object was removed, or was never stored")
        try:
            description = ObjectInfo.model_validate_json(stored.body)
        except ValidationError as error:
            raise ContractError(f"the description of {claim.encode()} cannot be read: {describe(error)}") from None
        if description.deleted:
            raise ContractError(f"{claim.encode()} does not exist: the object was deleted from the store")
        parts, held = [], 0
        async for chunk in self._bus.read("artifacts", self._chunks(description.nuid)):
            parts.append(chunk.body)
            held += len(chunk.body)
            if held > claim.size:
                break
        body = b"".join(parts)
        if len(body) != claim.size or sha256(body).hexdigest() != claim.sha256:
            raise ContractError(
                f"{claim.encode()} is damaged: {held} bytes were read, which differ from the stored body"
            )
        return body

    def _object_info(self, name: str) -> str:
        return f"$O.{self._bucket}.M.{urlsafe_b64encode(name.encode()).decode()}"

    def _chunks(self, nuid: str) -> str:
        return f"$O.{self._bucket}.C.{nuid}"


def object_name(subjects: Subjects, subject: str, digest: str) -> str:
    """Return the name of the object for a body.

    Args:
        subjects: The subjects of the namespace.
        subject: The subject of the message with the body.
        digest: The SHA-256 of the body, in hexadecimal digits.

    Returns:
        The name. Its first part is the workflow of the subject, or a digest of the subject if the subject has no
        workflow. Its second part is the digest of the body.
    """
    return f"{subjects.workflow_of(subject) or stable_digest(subject.encode())}-{digest}"


def parse_object_name(subject: str) -> ObjectName:
    """Parse the name of an object.

    Args:
        subject: The subject of the description of the object.

    Returns:
        The parts of the name. For an object of another program, each part is empty.
    """
    try:
        name = urlsafe_b64decode(subject.rpartition(".")[2]).decode()
    except (Base64Error, UnicodeDecodeError):
        name = ""
    owner, _, digest = name.rpartition("-")
    return ObjectName(owner, digest)


def _reference_header(headers: Mapping[str, str]) -> str | None:
    """Return the name of the header that refers to a body, in the upper and lower case that the sender used."""
    return next((name for name in headers if name.lower() == DATAREF_HEADER), None)


def _without_header(headers: Mapping[str, str], name: str) -> Mapping[str, str]:
    return {other: value for other, value in headers.items() if other != name}
