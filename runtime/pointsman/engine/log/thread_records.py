"""Read and extend the records of threads by compare-and-set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pointsman.core.threads.turns import fold_thread
from pointsman.errors import ConflictError, InvariantError, PublishOutcomeUnknownError
from pointsman.ports.bus import Bus, StoredMessage
from pointsman.ports.clock import Clock
from pointsman_schemas.envelope import Envelope, decode, encode
from pointsman_schemas.strict_json import dump, parse
from pointsman_schemas.subjects import Subjects
from pointsman_schemas.threads import Thread, ThreadEntry, ThreadRecord

__all__ = ["ThreadHead", "ThreadRecords", "parse_thread_record", "read_thread"]

_MAX_RACES = 100
"""Compare-and-set conflicts of one change before the change fails. More conflicts are a sign of a different fault."""


@dataclass(frozen=True, slots=True)
class ThreadHead:
    """The end of a record: the thread, the number of its last change, and the sequence of that message."""

    thread: Thread | None = None
    number: int = 0
    sequence: int = 0


async def read_thread(bus: Bus, subject: str) -> ThreadHead:
    """Read the newest message of a record.

    Args:
        bus: The bus.
        subject: The subject of the record.

    Returns:
        The head; without a thread if there is no record.

    Raises:
        ContractError: The message cannot be read.
    """
    stored = await bus.last("log", subject)
    if stored is None:
        return ThreadHead()
    record = parse_thread_record(stored)
    return ThreadHead(record.state, record.number, stored.sequence)


def parse_thread_record(stored: StoredMessage) -> ThreadRecord:
    """Parse one message of a record.

    Args:
        stored: The message.

    Returns:
        The change, with the thread after it.

    Raises:
        ContractError: The message cannot be read.
    """
    return parse(ThreadRecord, decode(stored.headers, stored.body)[1])


class ThreadRecords:
    """The records of threads, as one process changes them.

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
        self, team: str, caller: str, thread: str, decide: Callable[[Thread | None], Sequence[ThreadEntry]]
    ) -> Thread | None:
        """Decide on a thread and store the entries. After a conflict, decide again on the newer thread.

        Args:
            team: The team.
            caller: The caller to whom the thread belongs.
            thread: The id of the thread.
            decide: A pure function that returns the entries; no entries change nothing.

        Returns:
            The thread after the change; None if there is no thread and no change.

        Raises:
            InvariantError: The change lost too many conflicts.
        """
        subject = self._subjects.thread(team, caller, thread)
        for _ in range(_MAX_RACES):
            head = await read_thread(self._bus, subject)
            entries = tuple(decide(head.thread))
            if not entries:
                return head.thread
            after = fold_thread(head.thread, entries)
            record = ThreadRecord(number=head.number + 1, entries=entries, state=after)
            envelope = Envelope(
                id=f"{thread}-{record.number}",
                type=ThreadRecord.event_type,
                source=self._source,
                time=self._clock.now(),
                subject=thread,
            )
            try:
                sequence = await self._bus.publish(subject, dump(record), encode(envelope), expect=head.sequence)
            except (ConflictError, PublishOutcomeUnknownError):
                continue  # decided again on the newest record: a change that was stored after all needs no entries
            if head.sequence:
                await self._bus.trim("log", subject, sequence - 1)  # the newest message is the whole thread
            return after
        raise InvariantError(f"the thread {thread} lost {_MAX_RACES} races for its record in a row")
