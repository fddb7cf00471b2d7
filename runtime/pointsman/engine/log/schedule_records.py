"""Read and extend the records of schedules by compare-and-set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from pointsman.core.schedules.state import fold_schedule
from pointsman.errors import ConflictError, ContractError, InvariantError, PublishOutcomeUnknownError
from pointsman.ports.bus import Bus, StoredMessage
from pointsman.ports.clock import Clock
from pointsman_schemas.envelope import Envelope, decode, encode
from pointsman_schemas.schedules import Schedule, ScheduleEntry, ScheduleRecord
from pointsman_schemas.strict_json import dump, parse
from pointsman_schemas.subjects import Subjects

__all__ = ["ChangedSchedule", "ScheduleHead", "ScheduleRecords", "read_schedule", "read_schedules", "schedule_of"]

_MAX_RACES = 100
"""Compare-and-set conflicts of one change before the change fails. More conflicts are a sign of a different fault."""


@dataclass(frozen=True, slots=True)
class ScheduleHead:
    """The end of a record: the schedule, the number of its last change, and the sequence of that message."""

    schedule: Schedule | None = None
    number: int = 0
    sequence: int = 0


@dataclass(frozen=True, slots=True)
class ChangedSchedule:
    """The result of a change.

    Attributes:
        schedule: The schedule after the change; None if there is no record.
        entries: The entries that were stored.
        raced: True if another process may have stored a part of the change.
    """

    schedule: Schedule | None
    entries: tuple[ScheduleEntry, ...] = ()
    raced: bool = False


def schedule_of(stored: StoredMessage) -> Schedule:
    """Return the schedule of a message of its record.

    Raises:
        ContractError: The message cannot be read.
    """
    return parse(ScheduleRecord, decode(stored.headers, stored.body)[1]).state


async def read_schedule(bus: Bus, subject: str) -> ScheduleHead:
    """Read the newest message of a record.

    Args:
        bus: The bus.
        subject: The subject of the record.

    Returns:
        The head; without a schedule if there is no record.

    Raises:
        ContractError: The message cannot be read.
    """
    stored = await bus.last("log", subject)
    if stored is None:
        return ScheduleHead()
    record = parse(ScheduleRecord, decode(stored.headers, stored.body)[1])
    return ScheduleHead(record.state, record.number, stored.sequence)


async def read_schedules(bus: Bus, filter: str) -> Sequence[Schedule]:
    """Read all schedules of a filter.

    Args:
        bus: The bus.
        filter: The filter of records, see `Subjects.crons`.

    Returns:
        The schedules, by team, caller and name. Deleted schedules are among them until they expire.
    """
    found: dict[str, Schedule] = {}
    async for stored in bus.read("log", filter):
        with suppress(ContractError):  # another program published it
            found[stored.subject] = schedule_of(stored)
    return [found[subject] for subject in sorted(found)]


class ScheduleRecords:
    """The records of schedules, as one process changes them.

    Args:
        bus: The bus.
        subjects: The subjects of the namespace.
        clock: The clock.
        source: The CloudEvents source of the process.
    """

    def __init__(self, bus: Bus, subjects: Subjects, clock: Clock, source: str) -> None:
        self._bus = bus
        self._subjects = subjects
        self._clock = clock
        self._source = source

    async def change(
        self, team: str, caller: str, name: str, decide: Callable[[Schedule | None], Sequence[ScheduleEntry]]
    ) -> ChangedSchedule:
        """Decide on a schedule and store the entries. After a conflict, decide again on the newer schedule.

        Args:
            team: The team.
            caller: The caller to whom the schedule belongs.
            name: The name of the schedule.
            decide: A pure function that returns the entries; no entries change nothing.

        Returns:
            The result.

        Raises:
            InvariantError: The change lost too many conflicts.
        """
        subject = self._subjects.cron(team, caller, name)
        for race in range(_MAX_RACES):
            head = await read_schedule(self._bus, subject)
            entries = tuple(decide(head.schedule))
            if not entries:
                return ChangedSchedule(head.schedule, raced=race > 0)
            after = fold_schedule(head.schedule, entries)
            record = ScheduleRecord(number=head.number + 1, entries=entries, state=after)
            envelope = Envelope(
                id=f"{name}-{record.number}",
                type=ScheduleRecord.event_type,
                source=self._source,
                time=self._clock.now(),
                subject=name,
            )
            try:
                sequence = await self._bus.publish(subject, dump(record), encode(envelope), expect=head.sequence)
            except (ConflictError, PublishOutcomeUnknownError):
                continue  # decided again on the newest record: a change that was stored after all needs no entries
            if head.sequence:
                await self._bus.trim("log", subject, sequence - 1)  # the newest message is the whole schedule
            return ChangedSchedule(after, entries, raced=race > 0)
        raise InvariantError(f"the schedule {name} lost {_MAX_RACES} races for its record in a row")
