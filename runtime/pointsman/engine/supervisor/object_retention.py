"""Retention of the object store: delete large bodies and files to which no message refers any more.

A publish with a large body stores the body again if the stored copy is old. So no message refers to a body that is much
older than the message. But a file is stored only once. So it stays as long as the log of its workflow, or as long as
the record of its schedule. The file may be much older than the log, because the request may wait for a supervisor, and
a schedule may exist for years.
"""

from __future__ import annotations

import sys
from contextlib import aclosing, suppress
from datetime import datetime, timedelta
from typing import NamedTuple

from pydantic import ValidationError

from pointsman.bus.claim_check import ObjectInfo, parse_object_name
from pointsman.core.schedules.state import needs_file
from pointsman.engine.log.reader import as_async_generator
from pointsman.engine.log.records import SCHEDULE
from pointsman.ports.bus import Bus, StoredMessage
from pointsman_schemas.ids import is_token, schedule_id_for
from pointsman_schemas.schedules import Schedule
from pointsman_schemas.subjects import Subjects

__all__ = ["remove_objects"]

_LONGEST_UPLOAD = timedelta(hours=1)
"""Maximum time from the first chunk of an object to its description. Other objects may be stored meanwhile, so the
description of an expired object may come after the first chunk of a needed object."""


async def remove_objects(bus: Bus, subjects: Subjects, until: datetime) -> None:
    """Delete the objects that are older than a time and that no log, schedule or message needs.

    One purge deletes all objects before the first object that stays. Later objects are deleted one by one.

    Args:
        bus: The bus.
        subjects: The subjects of the namespace.
        until: The time. No message refers to an older object, so only the log or the schedule of its owner may need it.

    Raises:
        BusUnavailableError: The broker did not answer. The next call deletes the remaining objects.
    """
    await _ObjectRetention(bus, subjects).apply(until)


class _Expired(NamedTuple):
    """An object to delete: the subject and the sequence of its description, and the subject of its chunks."""

    subject: str
    sequence: int
    chunks: str


class _ObjectRetention:
    def __init__(self, bus: Bus, subjects: Subjects) -> None:
        self._bus = bus
        self._subjects = subjects
        self._chunks = f"$O.{subjects.artifacts_bucket}.C"
        self._logs: dict[str, bool] = {}
        self._schedules: dict[str, Schedule] | None = None

    async def apply(self, until: datetime) -> None:
        expired: list[_Expired] = []
        first_kept, kept_since = sys.maxsize, None
        descriptions = self._bus.read("artifacts", self._subjects.objects)
        async with aclosing(as_async_generator(descriptions)) as messages:
            async for stored in messages:
                if stored.at >= until + _LONGEST_UPLOAD:
                    break
                if await self._is_needed(stored.subject):
                    kept_since = kept_since or stored.at
                    if stored.at <= kept_since + _LONGEST_UPLOAD:  # all chunks of later objects come after `kept_since`
                        first_kept = min(first_kept, await self._first_chunk(stored))
                elif stored.at < until:
                    expired.append(_Expired(stored.subject, stored.sequence, self._chunks_of(stored)))
        if last := max((each.sequence for each in expired if each.sequence < first_kept), default=0):
            await self._bus.trim("artifacts", ">", last)
        for each in expired:
            if each.sequence > last:
                await self._bus.trim("artifacts", each.subject, each.sequence)
                if each.chunks:
                    await self._bus.trim("artifacts", each.chunks, each.sequence)
        if first_kept < sys.maxsize:
            await self._remove_orphans(until)

    async def _remove_orphans(self, until: datetime) -> None:
        """Delete old chunks without a description. They remain if a writer died, or if a content was stored twice."""
        known: set[str] = set()
        descriptions = self._bus.read("artifacts", self._subjects.objects)
        async with aclosing(as_async_generator(descriptions)) as messages:
            async for stored in messages:
                known.add(self._chunks_of(stored))
        for chunks in await self._bus.subjects("artifacts", f"{self._chunks}.*"):
            if chunks not in known and (chunk := await self._bus.last("artifacts", chunks)) and chunk.at < until:
                await self._bus.trim("artifacts", chunks, chunk.sequence)

    async def _is_needed(self, subject: str) -> bool:
        owner, digest = parse_object_name(subject)
        if owner.startswith("sc_"):
            schedule = (await self._by_id()).get(owner)
            return schedule is not None and needs_file(schedule, digest)
        if owner not in self._logs:
            self._logs[owner] = is_token(owner) and await self._has_log(owner)
        return self._logs[owner]

    async def _has_log(self, workflow: str) -> bool:
        return await self._bus.last("log", self._subjects.workflow_log(workflow)) is not None

    async def _by_id(self) -> dict[str, Schedule]:
        if self._schedules is None:
            found = await SCHEDULE.read_all(self._bus, self._subjects.crons())
            self._schedules = {schedule_id_for(each.team, each.caller, each.name): each for each in found}
        return self._schedules

    async def _first_chunk(self, description: StoredMessage) -> int:
        """Return the sequence of the first chunk of an object, or of the description of an object without chunks."""
        if chunks := self._chunks_of(description):
            async with aclosing(as_async_generator(self._bus.read("artifacts", chunks))) as messages:
                async for chunk in messages:
                    return min(chunk.sequence, description.sequence)
        return description.sequence

    def _chunks_of(self, description: StoredMessage) -> str:
        """Return the subject of the chunks of an object; empty if another program wrote the description."""
        with suppress(ValidationError):
            nuid = ObjectInfo.model_validate_json(description.body).nuid
            return f"{self._chunks}.{nuid}" if is_token(nuid) else ""
        return ""
