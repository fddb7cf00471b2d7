"""Keep the threads of a namespace in memory without the texts of turns, read from the records of the threads."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

from pointsman.engine.log.records import THREAD
from pointsman.errors import BusUnavailableError, ContractError
from pointsman.index.projection import Projection
from pointsman.ports.bus import Bus, StoredMessage
from pointsman_schemas.subjects import Subjects
from pointsman_schemas.threads import Thread

__all__ = ["ThreadIndex", "ThreadRow"]

_MAX_ROWS = 5_000  # number of threads in memory: those with the newest changes; each has about 2 kB
_MAX_HISTORY = 100_000  # number of messages of the log that are read at the start
_SHOWN_CHARS = 200  # number of characters of a request in the list
_SEARCHED_CHARS = 1_000  # number of characters of a thread's requests that are searched, from the newest request
_SWEEP_INTERVAL_S = 60.0  # seconds between two checks for expired threads; the broker does not report expiry


@dataclass(frozen=True, slots=True)
class ThreadRow:
    """One thread of the list, with the `data` for the page. Searches look in the case-folded `search_text`."""

    data: Mapping[str, object]
    search_text: str


class ThreadIndex(Projection):
    """The threads of one namespace as rows, without deleted threads."""

    def __init__(self, bus: Bus, subjects: Subjects, *, kept: int = _MAX_ROWS) -> None:
        super().__init__(bus, "log", subjects.threads(), history=_MAX_HISTORY)
        self._limit = kept
        self._rows: dict[str, ThreadRow] = {}  # by subject, in the order of the last change

    def page(self, text: str, *, offset: int, limit: int) -> tuple[Sequence[ThreadRow], int]:
        """Return one page of the rows that match `text`, and the number of all matching rows.

        The row with the newest change is first. The page begins after `offset` rows, and has at most `limit` rows.
        """
        fitting = [row for row in self._rows.values() if text in row.search_text]
        return list(islice(reversed(fitting), offset, offset + limit)), len(fitting)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(super().run())
            group.create_task(self._sweep())

    async def apply(self, stored: StoredMessage) -> None:
        before = self._rows.pop(stored.subject, None)
        try:
            thread = THREAD.parse(stored)
        except ContractError:  # another program published the message
            return
        if thread.deleted_at is None:
            self._rows[stored.subject] = _row(thread, before)
        while len(self._rows) > self._limit:
            del self._rows[next(iter(self._rows))]

    def reset(self) -> None:
        self._rows.clear()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_INTERVAL_S)
            with suppress(BusUnavailableError):
                await self.drop_expired()

    async def drop_expired(self) -> None:
        """Drop the rows of threads whose record is no longer in the stream."""
        if gone := await self.missing(list(self._rows)):
            for subject in gone:
                self._rows.pop(subject, None)
            self.notify()


def _row(thread: Thread, before: ThreadRow | None) -> ThreadRow:
    """Return the row of a thread. The title of an earlier row stays, because the record drops old turns."""
    turns = thread.turns
    title = str(before.data["title"]) if before else next((turn.request for turn in turns), "")[:_SHOWN_CHARS]
    newest = turns[-1] if turns else None
    status = (newest.outcome if newest.status == "ended" else newest.status) if newest else ""
    requests = " ".join(turn.request for turn in reversed(turns))[:_SEARCHED_CHARS]
    data = {
        "team": thread.team,
        "caller": thread.caller,
        "thread": thread.thread,
        "title": title,
        "turns": newest.number if newest else 0,
        "status": status,
        "changed_at": thread.changed_at,
    }
    searched = f"{thread.team} {thread.caller} {thread.thread} {title} {requests}"
    return ThreadRow(data, searched.casefold())
