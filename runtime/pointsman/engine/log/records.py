"""Read and extend the records of threads and schedules by compare-and-set.

Each message of a record contains the entries of one change and the state after the change. So the newest message is the
whole record, and a change deletes the older messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pointsman.core.schedules.state import fold_schedule
from pointsman.core.threads.turns import fold_thread
from pointsman.errors import ConflictError, ContractError, InvariantError, PublishOutcomeUnknownError
from pointsman.ports.bus import Bus, StoredMessage
from pointsman.ports.clock import Clock
from pointsman_schemas.envelope import Envelope, decode, encode
from pointsman_schemas.schedules import Schedule, ScheduleEntry, ScheduleRecord
from pointsman_schemas.strict_json import dump, parse
from pointsman_schemas.threads import Thread, ThreadEntry, ThreadRecord

__all__ = ["SCHEDULE", "THREAD", "Changed", "RecordHead", "RecordKind", "Records"]

_MAX_RACES = 100
"""Number of times that one change is tried. A try fails if another process has written to the record first. After so
many failures, another cause is more likely, so the change ends with an error."""

StateT = TypeVar("StateT")
EntryT = TypeVar("EntryT")


@dataclass(frozen=True, slots=True)
class RecordHead(Generic[StateT]):
    """The newest state of a record, the number of its last change, and the sequence of its last message."""

    state: StateT | None = None
    number: int = 0
    sequence: int = 0


@dataclass(frozen=True, slots=True)
class Changed(Generic[StateT, EntryT]):
    """The result of a change.

    Attributes:
        state: The state after the change; None if the record does not exist.
        entries: The entries that were stored.
        raced: True if more than one try was necessary. An earlier try whose answer was lost, or another process, may
            then have stored entries of this change, and `entries` does not contain them.
    """

    state: StateT | None
    entries: tuple[EntryT, ...] = ()
    raced: bool = False


@dataclass(frozen=True, slots=True)
class RecordKind(Generic[StateT, EntryT]):
    """One kind of record.

    Args:
        noun: The noun for a record in error messages.
        event: The class of the messages, with the fields `number`, `entries` and `state`.
        fold: The function that applies entries to a state.
    """

    noun: str
    event: type[Any]
    fold: Callable[[StateT | None, Iterable[EntryT]], StateT]

    def parse(self, stored: StoredMessage) -> StateT:
        """Parse one message of a record.

        Args:
            stored: The message.

        Returns:
            The state after the change that the message records.

        Raises:
            ContractError: The message cannot be read.
        """
        state: StateT = self._parse(stored).state
        return state

    async def read(self, bus: Bus, subject: str) -> RecordHead[StateT]:
        """Read the newest message of a record.

        Args:
            bus: The bus.
            subject: The subject of the record.

        Returns:
            The head, without a state if the record does not exist.

        Raises:
            ContractError: The message cannot be read.
        """
        stored = await bus.last("log", subject)
        if stored is None:
            return RecordHead()
        record = self._parse(stored)
        return RecordHead(record.state, record.number, stored.sequence)

    async def read_all(self, bus: Bus, filter: str) -> Sequence[StateT]:
        """Read all records whose subjects match a filter. Skip messages of other programs.

        Args:
            bus: The bus.
            filter: The filter of the subjects, see `Subjects.crons` and `Subjects.threads`.

        Returns:
            The states, in the order of the subjects. Deleted records are included until they expire.
        """
        found: dict[str, StateT] = {}
        async for stored in bus.read("log", filter):
            with suppress(ContractError):
                found[stored.subject] = self.parse(stored)
        return [found[subject] for subject in sorted(found)]

    def _parse(self, stored: StoredMessage) -> Any:
        return parse(self.event, decode(stored.headers, stored.body)[1])


THREAD: RecordKind[Thread, ThreadEntry] = RecordKind("thread", ThreadRecord, fold_thread)
SCHEDULE: RecordKind[Schedule, ScheduleEntry] = RecordKind("schedule", ScheduleRecord, fold_schedule)


class Records(Generic[StateT, EntryT]):
    """Changes the records of one kind for one process.

    Args:
        kind: The kind.
        bus: The bus.
        clock: The clock.
        source: The CloudEvents source of the process.
    """

    def __init__(self, kind: RecordKind[StateT, EntryT], bus: Bus, clock: Clock, source: str) -> None:
        self._kind = kind
        self._bus = bus
        self._clock = clock
        self._source = source

    async def change(
        self, subject: str, decide: Callable[[StateT | None], Sequence[EntryT]]
    ) -> Changed[StateT, EntryT]:
        """Decide on a record and store the entries. After a conflict, decide again on the newer state.

        Args:
            subject: The subject of the record. Its last token is the id of the thread or the name of the schedule.
            decide: A pure function that returns the entries; without entries, the record does not change.

        Returns:
            The result.

        Raises:
            InvariantError: The change had too many conflicts in a row.
        """
        kind, name = self._kind, subject.rpartition(".")[2]
        for race in range(_MAX_RACES):
            head = await kind.read(self._bus, subject)
            entries = tuple(decide(head.state))
            if not entries:
                return Changed(head.state, raced=race > 0)
            after = kind.fold(head.state, entries)
            record = kind.event(number=head.number + 1, entries=entries, state=after)
            envelope = Envelope(
                id=f"{name}-{record.number}",
                type=kind.event.event_type,
                source=self._source,
                time=self._clock.now(),
                subject=name,
            )
            try:
                sequence = await self._bus.publish(subject, dump(record), encode(envelope), expect=head.sequence)
            except (ConflictError, PublishOutcomeUnknownError):
                continue  # read the newest record and decide again; if it has the change, there is nothing to decide
            if head.sequence:
                await self._bus.trim("log", subject, sequence - 1)  # the newest message is the whole record
            return Changed(after, entries, raced=race > 0)
        raise InvariantError(f"a change of the {kind.noun} {name} had {_MAX_RACES} conflicts in a row")
