"""Schedules of a team: decide about commands and timers, send the requests of runs, and arm the next timer.

One change is one compare-and-set publish to the record of the schedule. After the change, the request of a run and the
next timer are computed from the record and published; a repeated publish has no effect. Then the input is acknowledged.
After a crash before the acknowledgement, any supervisor may receive the input again, and it publishes the missing
messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import NamedTuple, TypeVar
from weakref import WeakValueDictionary

from pointsman.core.model.state import State
from pointsman.core.schedules.runs import (
    ChangeAsked,
    change_schedule,
    check_schedule,
    end_runs,
    schedule_of_request,
)
from pointsman.core.schedules.state import fold_schedule, is_live, open_runs
from pointsman.engine.log.reader import gather_batched, is_outcome
from pointsman.engine.log.records import SCHEDULE, Records
from pointsman.engine.process.fault_injection import fault_point
from pointsman.engine.process.retrying import retry_while_unavailable
from pointsman.errors import (
    BusUnavailableError,
    ContractError,
    PermissionDeniedError,
    UndecodableEventError,
    UnknownEventTypeError,
)
from pointsman.ports.bus import Bus, Delivery, StoredMessage
from pointsman.ports.clock import Clock
from pointsman.telemetry import get_logger
from pointsman_schemas.envelope import Envelope, decode, encode
from pointsman_schemas.events import Event, Outcome
from pointsman_schemas.ids import schedule_id_for
from pointsman_schemas.schedules import (
    SCHEDULE_ACTIONS,
    RunGranted,
    RunStarted,
    Schedule,
    ScheduleChange,
    ScheduleEntry,
    ScheduleRun,
    ScheduleTimer,
    TimerSet,
)
from pointsman_schemas.strict_json import dump, parse
from pointsman_schemas.subjects import ControlAddress, Subjects, TimerAddress
from pointsman_schemas.team import Team

__all__ = ["ScheduleBounds", "Scheduler"]

_SWEEP_INTERVAL_S = 3600.0
"""Seconds between two checks of all schedules. A check arms the timers that the broker has lost."""
_ID_POSITION = 3  # the position of the schedule's id among the tokens of a subject

_log = get_logger(__name__)

Decide = Callable[[Schedule | None], Sequence[ScheduleEntry]]
EventT = TypeVar("EventT", bound=Event)


class ScheduleBounds(NamedTuple):
    """Maximum numbers of schedules.

    Attributes:
        of_team: Maximum number of schedules of the team.
        of_caller: Maximum number of schedules that one caller has with the team.
    """

    of_team: int
    of_caller: int


class Scheduler:
    """The schedules of one team. Any number of supervisors may handle the schedules in parallel.

    Args:
        bus: The bus.
        subjects: The subjects of the namespace.
        clock: The clock.
        team: The team.
        bounds: The bounds of the schedules.
    """

    def __init__(self, bus: Bus, subjects: Subjects, clock: Clock, team: Team, bounds: ScheduleBounds) -> None:
        self._bus = bus
        self._subjects = subjects
        self._clock = clock
        self._team = team.name
        self._limits = team.limits
        self._bounds = bounds
        self._records = Records(SCHEDULE, bus, clock, subjects.source("team", team.name))
        self._locks = WeakValueDictionary[str, asyncio.Lock]()
        self._sweep = asyncio.Event()

    def concerns(self, message: StoredMessage) -> bool:
        """Return True if a message is a command about a schedule, or the timer of a schedule."""
        tokens = message.subject.split(".", _ID_POSITION + 1)
        return len(tokens) > _ID_POSITION and tokens[_ID_POSITION].startswith("sc_")

    async def process(self, delivery: Delivery) -> None:
        """Decide about a command or a timer. The caller settles the delivery.

        Args:
            delivery: The delivery.

        Raises:
            ContractError: The message cannot be read.
        """
        fault_point("supervisor.received")
        schedule_id = delivery.message.subject.split(".")[_ID_POSITION]
        lock = self._locks.setdefault(schedule_id, asyncio.Lock())
        async with lock:  # the commands about one schedule are decided in the order of their arrival
            if self._subjects.kind_of(delivery.message.subject) == "timer":
                await self._on_timer(delivery)
            else:
                await self._on_change(delivery)

    async def record(self, state: State) -> None:
        """Record the end of a run, and start the run that waits for this end. A repeated call has no effect.

        Args:
            state: The state of a workflow. Nothing is recorded unless the workflow is a run that has ended.
        """
        if state.outcome is None or not state.ended or state.parent is not None:
            return
        if (name := schedule_of_request(state.request_id)) is None:
            return
        with suppress(ContractError):  # a caller may have chosen a request id that only looks like the id of a run
            head = await SCHEDULE.read(self._bus, self._subjects.cron(self._team, state.caller, name))
            if head.state is not None and any(each.workflow_id == state.workflow_id for each in head.state.runs):
                ended = {state.workflow_id: state.outcome.status}
                await self._decide(state.caller, name, lambda schedule: (), ended=ended)

    def check_soon(self) -> None:
        """Check all schedules soon, because the broker's clock was set."""
        self._sweep.set()

    async def run(self) -> None:
        """Check all schedules at the start, after each `check_soon`, and an hour after each check. Never returns."""
        while True:
            self._sweep.clear()
            await retry_while_unavailable(self._check_all, self._clock)
            waits = [
                asyncio.create_task(self._sweep.wait()),
                asyncio.ensure_future(self._clock.sleep(_SWEEP_INTERVAL_S)),
            ]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for each in waits:
                    each.cancel()
                await asyncio.gather(*waits, return_exceptions=True)

    async def _check_all(self) -> None:
        found = await SCHEDULE.read_all(self._bus, self._subjects.crons(self._team))
        await gather_batched(self._check(each) for each in found if is_live(each) or open_runs(each))

    async def _check(self, schedule: Schedule) -> None:
        try:
            await self._decide(schedule.caller, schedule.name, lambda schedule: (), complete=True)
        except (BusUnavailableError, PermissionDeniedError):
            raise
        except Exception:  # a faulty schedule, such as one with an unknown time zone, must not end the other checks
            _log.exception("schedule_failed", schedule=schedule.name, caller=schedule.caller, team=self._team)

    async def _on_change(self, delivery: Delivery) -> None:
        address = self._subjects.parse(delivery.message.subject, ControlAddress)
        change = _read(ScheduleChange, delivery.message)
        if address.action not in SCHEDULE_ACTIONS:
            raise UndecodableEventError(
                f"the action is {address.action!r}; expected {' or '.join(SCHEDULE_ACTIONS)} for a schedule"
            )
        self._check_id(change.caller, change.schedule, address.workflow)
        full = await self._full(change.caller) if change.action == "create" else ""
        for_others = address.action == "schedule-others"
        asked = ChangeAsked(address.id, address.actor, self._team, change, full, for_others, self._limits)
        now = await self._bus.time()
        await self._decide(
            change.caller,
            change.schedule,
            lambda schedule: change_schedule(schedule, asked, self._subjects, now),
            now=now,
            complete=delivery.delivered > 1,
        )

    async def _on_timer(self, delivery: Delivery) -> None:
        stored = delivery.message
        address = self._subjects.parse(stored.subject, TimerAddress)
        planned = self._subjects.schedule(address.team, address.workflow, address.name)
        if stored.scheduled_by != planned:
            raise UndecodableEventError(
                f"the timer comes from {stored.scheduled_by or 'a client'}; expected the schedule {planned}; only the "
                "broker may publish a timer"
            )
        timer = _read(ScheduleTimer, stored)
        self._check_id(timer.caller, timer.schedule, address.workflow)
        await self._decide(
            timer.caller, timer.schedule, lambda schedule: (), fired=timer.number, complete=delivery.delivered > 1
        )

    def _check_id(self, caller: str, name: str, id: str) -> None:
        if (expected := schedule_id_for(self._team, caller, name)) != id:
            raise UndecodableEventError(
                f"the subject names the schedule {id}; expected {expected}, the id of {name!r} of {caller}"
            )

    async def _full(self, caller: str) -> str:
        """Return the reason why a caller may not create another schedule; empty if the caller may."""
        team = self._team
        for filter, most, who, setting in (
            (self._subjects.crons(team), self._bounds.of_team, f"the team {team} has", "MAX_SCHEDULES"),
            (
                self._subjects.crons(team, caller),
                self._bounds.of_caller,
                f"{caller} has with the team {team}",
                "MAX_CALLER_SCHEDULES",
            ),
        ):
            if len(await self._bus.subjects("log", filter)) < most:
                continue
            live = sum(is_live(each) for each in await SCHEDULE.read_all(self._bus, filter))
            if live >= most:
                return (
                    f"{who} {live} schedules, the maximum by POINTSMAN_{setting}; delete a schedule, or raise the "
                    "setting of the supervisors"
                )
        return ""

    async def _decide(
        self,
        caller: str,
        name: str,
        first: Decide,
        *,
        now: datetime | None = None,
        fired: int | None = None,
        ended: Mapping[str, str] | None = None,
        complete: bool = False,
    ) -> None:
        """Decide about one schedule, store the entries, and publish the messages.

        Args:
            caller: The caller to whom the schedule belongs.
            name: The name of the schedule.
            first: Function that decides about the input. Afterwards the times and the runs are checked.
            now: The broker's time; None to read the time.
            fired: The number of the timer that has fired; None if the input is not a timer.
            ended: The status of each run that has ended, by workflow; None to read the status from the log.
            complete: True to publish all messages of the record, because an earlier process may have crashed before
                it published them.
        """
        moment = now or await self._bus.time()
        ends = await self._find_ends(caller, name) if ended is None else ended

        def decide(schedule: Schedule | None) -> Sequence[ScheduleEntry]:
            entries = tuple(first(schedule))
            if schedule is None and not entries:
                return ()
            after = fold_schedule(schedule, entries)
            entries += end_runs(after, ends, moment)
            after = fold_schedule(schedule, entries)
            return (*entries, *check_schedule(after, self._subjects, moment, fired=fired))

        changed = await self._records.change(self._subjects.cron(self._team, caller, name), decide)
        fault_point("supervisor.committed")
        if changed.state is None:
            return
        for entry in changed.entries:
            _log.info(entry.kind, schedule=name, caller=caller, team=self._team)
        complete = complete or changed.raced or not changed.entries
        await self._publish(changed.state, changed.entries, moment, complete=complete)
        fault_point("supervisor.emitted")

    async def _find_ends(self, caller: str, name: str) -> Mapping[str, str]:
        """Return the status of each run that has ended but that the record shows as running, by workflow."""
        head = await SCHEDULE.read(self._bus, self._subjects.cron(self._team, caller, name))
        runs = [each for each in head.state.runs if each.status == "running"] if head.state else []
        ends = await gather_batched(self._end_of(each) for each in runs)
        return {each.workflow_id: end for each, end in zip(runs, ends, strict=True) if end}

    async def _end_of(self, run: ScheduleRun) -> str:
        stored = await self._bus.last("log", self._subjects.outcome(self._team, run.workflow_id))
        if stored is None or not is_outcome(stored):
            return ""
        return parse(Outcome, decode(stored.headers, stored.body)[1]).status

    async def _has_begun(self, run: ScheduleRun) -> bool:
        return await self._bus.last("log", self._subjects.log(self._team, run.workflow_id)) is not None

    async def _publish(
        self, schedule: Schedule, entries: Sequence[ScheduleEntry], now: datetime, *, complete: bool
    ) -> None:
        """Publish the requests of the runs that start, and arm the timer."""
        new = {each.workflow_id for each in entries if isinstance(each, RunStarted | RunGranted)}
        running = [each for each in schedule.runs if each.status == "running"]
        runs = [each for each in running if each.workflow_id in new or (complete and not await self._has_begun(each))]
        await gather_batched(self._send_request(schedule, run, now) for run in runs)
        if is_live(schedule) and (complete or any(isinstance(each, TimerSet) for each in entries)):
            await self._arm(schedule, now)

    async def _send_request(self, schedule: Schedule, run: ScheduleRun, now: datetime) -> None:
        assert schedule.spec is not None
        request = schedule.spec.request
        body = dump(request)
        envelope = Envelope(
            id=run.request_id,
            type=request.event_type,
            source=self._subjects.source("schedule", schedule.name),
            time=now,
            subject=run.workflow_id,
            correlation_id=request.correlation_id or run.request_id,
        )
        subject = self._subjects.request(schedule.team, schedule.caller)
        await self._bus.publish(subject, body, encode(envelope))  # a second copy has the same id and starts no workflow
        fault_point("supervisor.sent")

    async def _arm(self, schedule: Schedule, now: datetime) -> None:
        """Arm the timer of the record. A repeated call has no effect, even if the timer has fired."""
        if schedule.wake is None:
            return
        id = schedule_id_for(schedule.team, schedule.caller, schedule.name)
        # The name has the time of creation, because a schedule that was created again counts its timers from 1 again.
        name = f"{schedule.created_at:%Y%m%dT%H%M%S}-{schedule.timer}"
        timer = ScheduleTimer(caller=schedule.caller, schedule=schedule.name, number=schedule.timer, due=schedule.wake)
        envelope = Envelope(
            id=f"{id}-{name}",
            type=ScheduleTimer.event_type,
            source=self._subjects.source("team", self._team),
            time=now,
            subject=id,
        )
        await self._bus.schedule(
            self._subjects.schedule(self._team, id, name),
            schedule.wake,
            self._subjects.timer(self._team, id, name),
            dump(timer),
            encode(envelope),
        )


def _read(kind: type[EventT], stored: StoredMessage) -> EventT:
    envelope, body = decode(stored.headers, stored.body)
    if envelope is not None and envelope.type != kind.event_type:
        raise UnknownEventTypeError(
            f"the event's type is {envelope.type[:200]!r}; expected {kind.event_type!r} on this subject"
        )
    return parse(kind, body)
