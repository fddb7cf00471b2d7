"""Sum the usage of a team's workflows in a day (UTC), and refuse requests above the daily limits of the team.

The sums are computed from the outcomes in the log. So all supervisors of a team have the same sums, also after a
restart, and need no separate store. A request to a team with daily limits costs one read. Teams without daily limits
need no reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from datetime import UTC, date

from pointsman.core.model.inputs import RequestReceived, RequestRefused
from pointsman.engine.log.reader import as_async_generator, is_imported, is_outcome
from pointsman.engine.supervisor.inbound import InboundInput
from pointsman.errors import ContractError
from pointsman.ports.bus import Bus, StoredMessage
from pointsman.ports.clock import Clock
from pointsman.telemetry import get_logger
from pointsman_schemas.envelope import decode
from pointsman_schemas.events import AttemptError, ErrorKind, Outcome, Usage
from pointsman_schemas.strict_json import parse
from pointsman_schemas.subjects import Subjects
from pointsman_schemas.team import DailyLimits, Team

__all__ = ["DailyUsage"]

_FIRST_WINDOW = 1_000
"""Number of sequences by which the first search for the beginning of the day goes back in the log. Each further search
goes back four times as far."""
_MAX_CALLERS = 100_000
"""Maximum number of callers with a separate sum. The sums take some 20 MB. Further callers of the day share one sum."""
_OTHERS = ""
"""The key of the shared sum."""

_log = get_logger(__name__)


@dataclass(slots=True)
class _Day:
    """The sums of one day."""

    date: date
    team: Usage = Usage()
    callers: dict[str, Usage] = field(default_factory=dict)


class DailyUsage:
    """The usage of one team today.

    Args:
        bus: The bus.
        subjects: The subjects of the namespace.
        clock: The clock.
        team: The team.
    """

    def __init__(self, bus: Bus, subjects: Subjects, clock: Clock, team: Team) -> None:
        self._bus = bus
        self._clock = clock
        self._team = team
        self.active = team.daily != DailyLimits() or team.daily_per_caller != DailyLimits()
        """True if the team has a daily limit."""
        self._outcomes = subjects.team_outcomes(team.name)
        self._day = _Day(date.min)
        self._sequence = 0
        self._reads = 0
        self._reading = asyncio.Lock()
        self._warned: set[str] = set()

    async def refuse(self, inbound: Iterable[InboundInput]) -> None:
        """Replace each request by a refusal, if its team or its caller has reached a daily limit.

        Args:
            inbound: The inputs of a workflow without a log.

        Raises:
            BusUnavailableError: The broker does not answer.
        """
        for each in inbound:
            if self.active and isinstance(each.input, RequestReceived):
                admission, request = each.input.admission, each.input.request
                await self._catch_up()
                if reached := self._reached(admission.caller):
                    error = AttemptError(kind=ErrorKind.DAILY_LIMIT, message=reached)
                    each.input = RequestRefused(admission, error, request.reply_to)
                    self._warn(reached)

    async def _catch_up(self) -> None:
        """Add the stored outcomes of all supervisors. All calls that wait during a read share the next read."""
        wanted = self._reads + 1  # not the running read, which may have missed the newest outcome
        async with self._reading:
            if self._reads >= wanted:
                return
            self._reads += 1
            if not self._sequence:
                self._sequence = await self._sequence_before(self._clock.now().astimezone(UTC).date())
            outcomes = self._bus.read("log", self._outcomes, after=self._sequence)
            async with aclosing(as_async_generator(outcomes)) as messages:
                async for stored in messages:
                    await self._add(stored)
                    self._sequence = stored.sequence

    def _reached(self, caller: str) -> str:
        """Return a sentence about the daily limit that is reached; an empty text if no limit is reached."""
        if self._day.date < (today := self._clock.now().astimezone(UTC).date()):
            self._begin(today)
        of_caller = self._day.callers.get(self._key(caller), Usage())
        scopes = (
            (f"the team {self._team.name}", self._day.team, self._team.daily),
            (f"{caller} with the team {self._team.name}", of_caller, self._team.daily_per_caller),
        )
        for scope, used, limits in scopes:
            for name, amount, limit in (
                ("calls", used.calls, limits.calls),
                ("tokens", used.tokens, limits.tokens),
                ("cost", used.cost, limits.cost),
            ):
                if limit is not None and amount >= limit:
                    return (
                        f"{scope} has used {amount:g} of the {limit:g} {name} of a day (UTC); a new day begins at "
                        "midnight"
                    )
        return ""

    def _warn(self, reached: str) -> None:
        """Log a reached limit once a day. Further refusals have the same text, because the sums stay the same."""
        if reached not in self._warned:
            self._warned.add(reached)
            hint = "requests are refused until midnight (UTC); raise `daily` or `daily_per_caller` of the team"
            _log.warning("daily_limit_reached", team=self._team.name, reason=reached, hint=hint)

    def _begin(self, today: date) -> None:
        self._day = _Day(today)
        self._warned.clear()

    def _key(self, caller: str) -> str:
        known = self._day.callers
        return caller if caller in known or len(known) < _MAX_CALLERS else _OTHERS

    async def _sequence_before(self, day: date) -> int:
        """Return a sequence of the log before the first outcome of `day`. Each step of the search reads one message."""
        last = await self._bus.last("log", self._outcomes)
        window = _FIRST_WINDOW
        while last is not None and (before := last.sequence - window) > 0:
            async with aclosing(as_async_generator(self._bus.read("log", self._outcomes, after=before))) as messages:
                first = await anext(messages, None)
            if first is None or first.at.astimezone(UTC).date() < day:
                return before
            window *= 4
        return 0

    async def _add(self, stored: StoredMessage) -> None:
        """Add the usage of one outcome of today or a later day. Skip an earlier outcome."""
        day = stored.at.astimezone(UTC).date()
        if day < self._day.date or not is_outcome(stored) or is_imported(stored):
            return
        try:
            outcome = parse(Outcome, decode(stored.headers, stored.body)[1])
        except ContractError:  # another release wrote the outcome
            return
        if day > self._day.date:
            self._begin(day)
        used = outcome.usage - await self._usage_before(stored) if outcome.round > 1 else outcome.usage
        key = self._key(outcome.caller)
        self._day.team += used
        if self._team.daily_per_caller != DailyLimits():
            self._day.callers[key] = self._day.callers.get(key, Usage()) + used

    async def _usage_before(self, stored: StoredMessage) -> Usage:
        """Return the usage of the earlier rounds, which the outcome of each later round includes."""
        earlier = Usage()
        async with aclosing(as_async_generator(self._bus.read("log", stored.subject))) as messages:
            async for each in messages:
                if each.sequence >= stored.sequence:
                    break
                with suppress(ContractError):
                    earlier = parse(Outcome, decode(each.headers, each.body)[1]).usage
        return earlier
