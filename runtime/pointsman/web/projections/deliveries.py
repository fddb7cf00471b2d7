"""Keep the states of webhook deliveries in memory, so a page can filter them. The states are read from the receipts."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice

from pointsman.errors import BusUnavailableError
from pointsman.index.projection import Projection
from pointsman.ports.bus import Bus, StoredMessage
from pointsman.webhooks.deliveries import DeliveryState, parse_state
from pointsman_schemas.subjects import Subjects

__all__ = ["DeliveryIndex"]

_MAX_ROWS = 10_000  # number of deliveries in memory: those with the newest changes; each has about 1 kB
_MAX_HISTORY = 20_000  # number of receipts that are read at the start
_SWEEP_INTERVAL_S = 300.0  # seconds between two checks for expired deliveries; the broker does not report expiry


class DeliveryIndex(Projection):
    """The newest deliveries of one namespace that had an attempt."""

    def __init__(self, bus: Bus, subjects: Subjects, *, kept: int = _MAX_ROWS) -> None:
        super().__init__(bus, "deliveries", subjects.receipts(), history=_MAX_HISTORY)
        self._limit = kept
        self._states: dict[str, DeliveryState] = {}  # by subject, in the order of the last change

    def page(
        self, text: str, *, endpoint: str, status: str, offset: int, limit: int
    ) -> tuple[Sequence[Mapping[str, object]], int]:
        """Return one page of the matching deliveries, the newest change first, and the number of all matches.

        Args:
            text: The case-folded text that the event, workflow, type or error of a delivery must contain.
            endpoint: The endpoint; empty for all.
            status: The status; empty for all.
            offset: The number of deliveries before the page.
            limit: The size of the page.
        """
        fitting = [
            each
            for each in reversed(self._states.values())
            if endpoint in ("", each.endpoint) and status in ("", each.status) and text in _searched(each)
        ]
        shown = islice(fitting, offset, offset + limit)
        return [each.model_dump(mode="json", exclude={"order"}) for each in shown], len(fitting)

    def counts(self) -> Mapping[str, Mapping[str, int]]:
        """Return the number of deliveries of each endpoint by status."""
        found: dict[str, Counter[str]] = {}
        for each in self._states.values():
            found.setdefault(each.endpoint, Counter())[each.status] += 1
        return found

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(super().run())
            group.create_task(self._sweep())

    async def apply(self, stored: StoredMessage) -> None:
        self._states.pop(stored.subject, None)
        if (state := parse_state(stored)) is not None:
            self._states[stored.subject] = state
        while len(self._states) > self._limit:
            del self._states[next(iter(self._states))]

    def reset(self) -> None:
        self._states.clear()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_INTERVAL_S)
            with suppress(BusUnavailableError):
                if gone := await self.missing(list(self._states)):
                    for subject in gone:
                        self._states.pop(subject, None)
                    self.notify()


def _searched(state: DeliveryState) -> str:
    return f"{state.event} {state.workflow_id or ''} {state.type} {state.error}".casefold()
