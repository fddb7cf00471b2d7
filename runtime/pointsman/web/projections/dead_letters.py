"""Keep the dead letters of a namespace in memory without their bodies, so a page can search all letters."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from itertools import islice

from pointsman.engine.log.reader import as_async_generator
from pointsman.engine.operations.dead_letter_entry import read_dead_letter
from pointsman.errors import BusUnavailableError, ContractError
from pointsman.index.projection import Projection
from pointsman.ports.bus import Bus, StoredMessage
from pointsman.web import views
from pointsman_schemas.subjects import Subjects

__all__ = ["LetterIndex", "LetterRow"]

_MAX_ROWS = 20_000  # number of letters in memory; the oldest are dropped; a row has about 1.5 kB
# Number of messages read at the start. The empty messages of replayed and discarded letters count, too.
_MAX_HISTORY = 100_000
_SEARCHED_CHARS = 1_000  # number of characters of a cause that are searched
_SWEEP_INTERVAL_S = 60.0  # seconds between two checks for expired letters; the broker does not report expiry


@dataclass(frozen=True, slots=True)
class LetterRow:
    """One letter of the list, with the `data` for the page. Searches look in the case-folded `search_text`."""

    sequence: int
    id: str
    data: Mapping[str, object]
    search_text: str


class LetterIndex(Projection):
    """The dead letters of one namespace, as rows."""

    def __init__(self, bus: Bus, subjects: Subjects, *, kept: int = _MAX_ROWS) -> None:
        super().__init__(bus, "dead", subjects.dead_letters, history=_MAX_HISTORY)
        self._limit = kept
        self._rows: dict[str, LetterRow] = {}  # by subject, in the order of the stream

    def __len__(self) -> int:
        return len(self._rows)

    def page(self, text: str, *, offset: int, limit: int) -> tuple[Sequence[LetterRow], int]:
        """Return one page of the rows that match `text`, newest first, and the number of all matching rows.

        The page begins after `offset` rows, and has at most `limit` rows.
        """
        fitting = self.matching(text)
        return list(islice(reversed(fitting), offset, offset + limit)), len(fitting)

    def matching(self, text: str, *, until: int | None = None) -> Sequence[LetterRow]:
        """Return all rows that match the case-folded `text`, up to the sequence `until`, oldest first."""
        rows = self._rows.values()
        return [row for row in rows if text in row.search_text and (until is None or row.sequence <= until)]

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(super().run())
            group.create_task(self._sweep())

    async def apply(self, stored: StoredMessage) -> None:
        self._rows.pop(stored.subject, None)
        if not stored.body:
            return  # the letter was replayed or discarded
        try:
            content = read_dead_letter(stored).content
        except ContractError:  # not a dead letter of Pointsman
            return
        searched = (
            content.id,
            content.origin,
            content.workflow_id or "",
            content.cause.kind,
            content.cause.for_operators[:_SEARCHED_CHARS],
        )
        search_text = " ".join(searched).casefold()
        self._rows[stored.subject] = LetterRow(stored.sequence, content.id, views.dead_letter_row(content), search_text)
        while len(self._rows) > self._limit:
            del self._rows[next(iter(self._rows))]

    def reset(self) -> None:
        self._rows.clear()

    def remove(self, name: str) -> None:
        """Remove the letter with the id `name`, because the letter is no longer in the stream."""
        self._drop([subject for subject, row in self._rows.items() if row.id == name])

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_INTERVAL_S)
            with suppress(BusUnavailableError):
                await self.drop_aged()

    async def drop_aged(self) -> None:
        """Drop the rows before the first message that is still in the stream, because their letters have expired."""
        seen = self.sequence
        async with aclosing(as_async_generator(self._bus.read(self._stream, self._subject))) as messages:
            first = await anext(messages, None)
        begin = first.sequence if first else seen + 1
        self._drop([subject for subject, row in self._rows.items() if row.sequence < begin])

    def _drop(self, subjects: Sequence[str]) -> None:
        for subject in subjects:
            del self._rows[subject]
        if subjects:
            self.notify()
