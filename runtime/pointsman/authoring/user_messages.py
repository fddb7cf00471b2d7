"""Let an attempt read the messages to its workflow. After a restart, a repeated read returns the same messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, cast

from pydantic import JsonValue

from pointsman.authoring.attempt_record import AttemptRecord
from pointsman.authoring.ports import MessageReader
from pointsman.errors import TaskError
from pointsman_schemas.events import ErrorKind, Handoff, Step, UserMessage

__all__ = ["MAX_READS", "ReceivedMessages"]

MAX_READS: Final = 1_000
"""Largest number of reads in one attempt. Each read is stored as a message on the bus, so an endless loop must fail."""


class ReceivedMessages:
    """The messages to the workflow that an attempt has read. Copies of the attempt's state share this object.

    Args:
        handoff: Handoff of the attempt, with the messages that arrived before the attempt.
        reader: Reader of the messages that arrive during the attempt, or None.
        record: Record of the attempt, which stores each read.
    """

    def __init__(self, handoff: Handoff, reader: MessageReader | None, record: AttemptRecord) -> None:
        self._handoff = handoff
        self._reader = reader
        self._record = record
        self._known: tuple[UserMessage, ...] = handoff.messages
        self._reads = 0
        self.last_read = 0
        """Number of the newest message that the attempt has read."""

    async def read(self, key: str) -> tuple[UserMessage, ...]:
        """Return all messages so far, and record the read.

        Args:
            key: Key of the read, equal in each process that runs the attempt.

        Returns:
            The messages, in order. If the read is recorded already, they are the recorded messages.

        Raises:
            TaskError: The attempt has read messages too often; kind `limit`.
        """
        name = f"messages-{key}"
        step = await self._record.recorded_step(name)
        if step is None:
            self._reads += 1
            if self._reads > MAX_READS:
                raise TaskError(
                    f"agent {self._handoff.to_agent} has read the messages {MAX_READS} times in one attempt; read them "
                    "between the steps of the work, not in a loop that waits",
                    kind=ErrorKind.LIMIT,
                )
            step = await self._store(name, await self._fetch())
        return self._mark(_messages_of(step))

    async def read_new(self, turn: int, step: Step | None, *, answered: bool, fetch: bool) -> Sequence[UserMessage]:
        """Return the messages that the model did not receive before this turn, and record them.

        Args:
            turn: Number of the turn, from 1.
            step: Recorded read of this turn, or None.
            answered: True if the model's answer of this turn is recorded. If the answer is recorded and `step` is None,
                the model got no new messages in this turn, so no messages are returned.
            fetch: True to also read the messages that arrived after the handoff.

        Returns:
            The messages, in order.
        """
        if step is None and not answered:
            known = await self._fetch() if fetch else self._known
            if new := tuple(each for each in known if each.number > self.last_read):
                step = await self._store(f"messages-{turn}", new)
        return self._mark(_messages_of(step)) if step is not None else ()

    async def _fetch(self) -> tuple[UserMessage, ...]:
        if self._reader is not None:
            newest = await self._reader.read()
            if len(newest) > len(self._known):
                self._known = newest
        return self._known

    async def _store(self, name: str, messages: Iterable[UserMessage]) -> Step:
        data = [each.model_dump(mode="json") for each in messages]
        return await self._record.append(self._record.new_step(name, data=data))

    def _mark(self, messages: tuple[UserMessage, ...]) -> tuple[UserMessage, ...]:
        self.last_read = max((each.number for each in messages), default=self.last_read)
        return messages


def _messages_of(step: Step) -> tuple[UserMessage, ...]:
    return tuple(UserMessage.model_validate(each) for each in cast(list[JsonValue], step.data))
