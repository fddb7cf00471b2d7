"""Store the receivers of push notifications in a bucket of the broker, so any gateway can deliver."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from pointsman.engine.log.bucket_follower import follow_bucket
from pointsman.errors import ConflictError
from pointsman.ports.key_value import KeyValue, KeyValueEntry
from pointsman.telemetry import get_logger
from pointsman_schemas.ids import derive_id

__all__ = ["PUSH_GROUP", "PushReceiver", "PushStore", "StoredReceiver", "now"]

PUSH_GROUP = "push"
"""The group of keys for receivers in the gateway's bucket."""

_log = get_logger(__name__)

_CONFLICT_PAUSE_S = 0.05
_MAX_REVISIONS = 50_000  # maximum number of revisions in memory; above it, revisions of deleted keys are dropped
_MAX_WRITES = 20  # maximum number of attempts to make a change while other gateways change the same entry


class PushReceiver(BaseModel):
    """A receiver of the events of one task, with the state of its deliveries."""

    model_config = ConfigDict(frozen=True)

    id: str = Field(description="The id of the configuration.")
    task: str = Field(description="The task.")
    team: str = Field(description="The team.")
    caller: str = Field(description="The caller of the task.")
    origin: str = Field(description="The URL of the gateway, for the addresses of files.")
    url: str = Field(description="The URL that receives the events.")
    token: str = Field(default="", description="A token that is sent with each notification.")
    scheme: str = Field(default="", description="The scheme of the credentials.")
    credentials: str = Field(default="", description="The credentials that are sent with each notification.")
    position: str = Field(default="", description="The position of the newest delivered event; empty for none.")
    status: Literal["active", "done", "failed"] = Field(default="active", description="The state of the deliveries.")
    attempts: int = Field(default=0, description="Number of failed attempts to deliver the next event.")
    error: str = Field(default="", description="The error of the newest failed attempt.")
    next_at: AwareDatetime | None = Field(default=None, description="Earliest time of the next attempt.")
    owner: str = Field(default="", description="The gateway that delivers.")
    owned_until: AwareDatetime | None = Field(default=None, description="Time at which the ownership of `owner` ends.")
    changed_at: AwareDatetime = Field(description="Time of the newest change.")

    @property
    def key(self) -> str:
        """The key of the receiver in the bucket."""
        return derive_id("push", self.task, self.id, length=32)


class StoredReceiver(BaseModel):
    """A receiver and the revision of its entry."""

    model_config = ConfigDict(frozen=True)

    receiver: PushReceiver
    revision: int


class PushStore:
    """The receivers of a namespace, in memory, kept current by a watch.

    Args:
        bucket: The bucket.
    """

    def __init__(self, bucket: KeyValue) -> None:
        self._bucket = bucket
        self._revisions: dict[str, int] = {}  # by key; compare-and-set also needs the revisions of deleted keys
        self.known: dict[str, StoredReceiver] = {}
        """The receivers by key."""
        self.changed = asyncio.Event()
        """Set after each change."""

    async def run(self) -> None:
        """Follow the changes, until cancelled."""
        await follow_bucket(self._bucket, self._apply, content="push receivers")

    async def of_task(self, task: str) -> Sequence[PushReceiver]:
        """Read the receivers of a task.

        Args:
            task: The task.

        Returns:
            The receivers, sorted by id.
        """
        await self._read()
        found = [each.receiver for each in self.known.values() if each.receiver.task == task]
        return sorted(found, key=lambda each: each.id)

    async def put(self, receiver: PushReceiver) -> None:
        """Store a receiver. Replace an earlier receiver with the same id.

        Args:
            receiver: The receiver.

        Raises:
            ConflictError: Other gateways changed the receiver during each attempt.
        """
        for attempt in range(_MAX_WRITES):
            await self._read()
            try:
                await self.write(receiver, self._revisions.get(receiver.key, 0))
                return
            except ConflictError:
                if attempt == _MAX_WRITES - 1:
                    raise
                await asyncio.sleep(_CONFLICT_PAUSE_S)
                # `_read` leaves out deleted keys, and a bucket that was created again has lower revisions.
                newest = await self._bucket.get(receiver.key)
                self._revisions[receiver.key] = newest.revision if newest is not None else 0

    async def write(self, receiver: PushReceiver, revision: int) -> StoredReceiver:
        """Change a receiver by compare-and-set.

        Args:
            receiver: The receiver.
            revision: The revision of the entry that the change is based on.

        Returns:
            The receiver with its new revision.

        Raises:
            ConflictError: The entry has a newer revision.
        """
        value = receiver.model_dump_json().encode()
        stored = await self._bucket.put(receiver.key, value, expect=revision)
        self._apply(KeyValueEntry(receiver.key, value, stored))
        return StoredReceiver(receiver=receiver, revision=stored)

    async def delete(self, key: str) -> None:
        """Delete a receiver. A missing receiver is not an error.

        Args:
            key: The key of the receiver.
        """
        await self._bucket.delete(key)
        self.known.pop(key, None)

    async def _read(self) -> None:
        for entry in (await self._bucket.entries()).values():
            self._apply(entry)

    def _apply(self, entry: KeyValueEntry) -> None:
        if entry.revision <= self._revisions.get(entry.key, 0):
            return
        self._revisions[entry.key] = entry.revision
        self.known.pop(entry.key, None)
        if entry.value is not None:
            try:
                receiver = PushReceiver.model_validate_json(entry.value)
                self.known[entry.key] = StoredReceiver(receiver=receiver, revision=entry.revision)
            except ValidationError:
                _log.warning("push_receiver_unreadable", key=entry.key, hint="register the receiver again")
        if len(self._revisions) > _MAX_REVISIONS:
            self._revisions = {key: each.revision for key, each in self.known.items()}
        self.changed.set()


def now() -> datetime:
    """Return the present time."""
    return datetime.now(UTC)
