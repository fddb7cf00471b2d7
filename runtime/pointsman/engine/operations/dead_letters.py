"""List, replay and discard dead letters, which are events that could not be processed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeAlias

from pointsman.clock import SystemClock
from pointsman.engine.operations.audit import store_audit
from pointsman.engine.operations.dead_letter_entry import DeadLetterEntry, read_dead_letter
from pointsman.engine.operations.dead_letter_replay import DeadLetterReplay
from pointsman.engine.process.retrying import publish_with_retry
from pointsman.errors import ConflictError, ContractError, NotFoundError
from pointsman.ports.bus import Bus
from pointsman.ports.clock import Clock
from pointsman_schemas.events import Audit, DeadLetter
from pointsman_schemas.ids import derive_id
from pointsman_schemas.subjects import Subjects

__all__ = ["MAX_CONCURRENT_REPLAYS", "DeadLetters", "ReplayResult"]

_Action: TypeAlias = Literal["discard", "replay", "resume"]

MAX_CONCURRENT_REPLAYS = 16
"""Number of letters that are replayed at the same time. One after the other would take long, because each replay waits
for a supervisor."""


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The result of a replay.

    Attributes:
        letter: The id of the dead letter.
        action: `request`, `task` or `event`.
        workflow: The workflow that continues, or the new workflow.
        removed: True if the dead letter was removed.
    """

    letter: str
    action: str
    workflow: str
    removed: bool


class DeadLetters:
    """The dead letters of one namespace.

    Args:
        bus: The bus.
        subjects: The subjects of the namespace.
        user: The name of the user for the subjects of controls. Default: `anonymous`.
        clock: The clock of new events. Default: the system's clock.
        patience: The time that a supervisor may take to reopen a task, in seconds. Default: 5.
    """

    def __init__(
        self,
        bus: Bus,
        subjects: Subjects,
        *,
        user: str = "anonymous",
        clock: Clock | None = None,
        patience: float = 5.0,
    ) -> None:
        self._bus = bus
        self._subjects = subjects
        self._user = user
        self._clock: Clock = clock or SystemClock()
        self._replay = DeadLetterReplay(bus, subjects, user, self._clock, patience)

    async def list(
        self,
        *,
        origin: str | None = None,
        workflow: str | None = None,
        cause: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int | None = None,
    ) -> tuple[DeadLetterEntry, ...]:
        """Return the letters that match all given arguments, oldest first, and at most `limit` letters.

        `cause` is the kind of the cause. A letter written at `since` matches, a letter written at `until` does not.
        """
        letters: list[DeadLetterEntry] = []
        async for letter in self._matching(origin, workflow):
            if limit is not None and len(letters) == limit:
                break
            content = letter.content
            fits = cause is None or content.cause.kind == cause
            if fits and (since is None or content.at >= since) and (until is None or content.at < until):
                letters.append(letter)
        return tuple(letters)

    async def get(self, name: str) -> DeadLetterEntry:
        """Return the letter with the id `name`.

        Raises:
            NotFoundError: The letter does not exist.
        """
        stored = await self._bus.last("dead", self._subjects.dead_letters_for(name=name))
        if stored is None or not stored.body:
            raise NotFoundError(
                f"no dead letter {name!r} in namespace {self._subjects.namespace!r}: it was replayed, discarded "
                "or removed by retention; `pointsman dead list` shows the existing dead letters"
            )
        return read_dead_letter(stored)

    async def discard(self, letter: DeadLetterEntry) -> bool:
        """Remove a dead letter permanently, and record the user.

        An empty message is stored on the letter's subject, and stays. Otherwise, after a crash of the supervisor of a
        running workflow, the next supervisor would store the missing letter again.

        Returns:
            False if the letter had already been removed.
        """
        return await self._remove_with_audit("discard", letter)

    async def settle_resumed(self, letter: DeadLetterEntry, reason: str) -> None:
        """Remove the dead letter of a task that a resumed workflow does again, and record the user and the reason."""
        await self._remove_with_audit("resume", letter, reason)

    async def _remove_with_audit(self, action: _Action, letter: DeadLetterEntry, reason: str = "") -> bool:
        removed = await self._remove(letter)
        if removed:
            await self._store_audit(action, letter.content, reason)
        return removed

    async def _remove(self, letter: DeadLetterEntry) -> bool:
        with suppress(ConflictError):  # another process, or an earlier try of this process, has removed the letter
            await publish_with_retry(self._bus, letter.subject, b"", {}, expect=letter.sequence)
        return await self._bus.delete("dead", letter.sequence)

    async def _store_audit(self, action: _Action, content: DeadLetter, reason: str = "") -> None:
        now = self._clock.now()
        audit = Audit(action=action, workflow_id=content.workflow_id, dead_letter=content.id, reason=reason)
        id = derive_id(action, content.id, now.isoformat())
        await store_audit(self._bus, self._subjects, self._user, id, audit, now)

    async def replay(self, letter: DeadLetterEntry, *, as_new: bool = False, keep: bool = False) -> ReplayResult:
        """Replay the dead-lettered event. Then delete the letter if `keep` is False. A repeated call does no harm.

        Returns:
            The action, its workflow, and True if the letter was removed.

        Raises:
            NotReplayableError: The workflow has ended and `as_new` is not set, the event cannot be replayed, the letter
                was imported, or the agent of a task is not live.
            NotFoundError: The workflow has no log.
        """
        sent = await self._replay.send(letter, as_new=as_new, check_agent=not keep)
        await self._store_audit("replay", letter.content)
        return ReplayResult(letter.content.id, *sent, removed=not keep and await self._remove(letter))

    async def _matching(self, origin: str | None, workflow: str | None) -> AsyncIterator[DeadLetterEntry]:
        async for stored in self._bus.read("dead", self._subjects.dead_letters_for(origin=origin, workflow=workflow)):
            if stored.body:
                with suppress(ContractError):  # a foreign message
                    yield read_dead_letter(stored)
