"""The shell around the core: load, decide, commit, emit, acknowledge.

One commit is one compare-and-set publish to the workflow's log. What must be sent follows from the state and is sent
after it, idempotently; only then are the inputs acknowledged. A crash anywhere leaves the inputs unacknowledged: any
replica picks them up, sees what was committed and sends what is missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

from pointsman.core.decide import consider
from pointsman.core.inputs import Circumstances, Input, RequestReceived, RequestRefused, ResultReceived
from pointsman.core.outbox import Message, outbox
from pointsman.core.outcome import could_not
from pointsman.core.state import State
from pointsman.engine.burial import bury, store_letter
from pointsman.engine.continuity import lost_log, lost_work
from pointsman.engine.fault_points import passed
from pointsman.engine.history import commit_of
from pointsman.engine.intake import read_inbox, read_request, unreadable_result
from pointsman.engine.spans import record_spans
from pointsman.engine.workflow_log import DamagedLog, Head, WorkflowLog
from pointsman.errors import (
    BusUnavailable,
    Conflict,
    ContractError,
    InvariantError,
    OversizeEvent,
    StreamLost,
    UnknownOutcome,
)
from pointsman.ports import Bus, Clock, Consumer, Delivery
from pointsman.settings import Settings
from pointsman.telemetry import bind, get_logger, metrics, names, tracing
from pointsman_schemas.envelope import Envelope, encode
from pointsman_schemas.events import AttemptError, Cancellation, DeadLetter, ErrorKind, Handoff, Outcome, Result
from pointsman_schemas.log import Entry, TaskAbandoned, TimerArmed, WorkflowEnded
from pointsman_schemas.strict_json import dump
from pointsman_schemas.subjects import Subjects
from pointsman_schemas.team import Team

__all__ = ["SupervisorEngine"]

_log = get_logger(__name__)

_BATCH = 256
"""Inputs taken from the broker at once: what one stream delivers in a few milliseconds."""
_ENDED_KEPT = 10_000
"""Ended workflows that are remembered by id, so that their stale timers cost no reading of the log."""
_PATIENCE = 5
"""Deliveries of an input that makes the engine itself fail, before it becomes a dead letter."""
_ROOM_AGAIN = 1.0
"""Seconds between two looks whether workflows admitted here were finished by another supervisor."""
_UNKNOWN = 0.05
"""Seconds before a commit that may have been stored is looked for: what a cluster has under way is through by then."""
_DAY = 86_400.0
_REMEMBERED = _DAY
"""Seconds for which a commit is expected to be there still, unless the log keeps nothing for twice that long."""
_DEPOSED = 2.0
"""Seconds before what looks lost is looked for again: a node that leads no more may not know it yet."""
_RACES = 100
"""Compare-and-set races one turn may lose; more means that something else is wrong."""


@dataclass(slots=True)
class _Arrival:
    """An input and the delivery to settle once it is dealt with. With a `refusal` it becomes a dead letter as well."""

    input: Input
    delivery: Delivery
    event_id: str
    refusal: AttemptError | None = None


class SupervisorEngine:
    """Runs one team's workflows on a bus. Any number of processes may run the same team."""

    def __init__(self, bus: Bus, team: Team, settings: Settings, clock: Clock) -> None:
        self._bus = bus
        self._team = team
        self._settings = settings
        self._clock = clock
        self._subjects = Subjects(settings.namespace)
        self._log = WorkflowLog(bus, self._subjects, clock, team.name)
        self._heads: dict[str, Head] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._waiting: dict[str, list[_Arrival]] = {}
        self._admitted: set[str] = set()
        self._consumers: dict[str, Consumer] = {}
        self._changed = asyncio.Event()
        self._written = (0, 0.0)

    @property
    def ready(self) -> bool:
        """Whether the broker is serving both consumers of the team."""
        return not self.waiting_for

    @property
    def waiting_for(self) -> list[str]:
        """The consumers of the team that the broker is not serving now."""
        names = (f"request-{self._team.name}", f"inbox-{self._team.name}")
        return [name for name in names if (open := self._consumers.get(name)) is None or not open.bound]

    async def run(self, stop: asyncio.Event) -> None:
        """Supervise until `stop`; then take nothing new, finish what was taken, and return."""
        await self._bus.set_up()
        name, wait = self._team.name, self._settings.ack_wait
        requests = await self._bus.consumer(f"request-{name}", "work", self._subjects.request(name), ack_wait=wait)
        inbox = await self._bus.consumer(f"inbox-{name}", "work", self._subjects.inbox_of(name), ack_wait=wait)
        self._consumers = {f"request-{name}": requests, f"inbox-{name}": inbox}
        await self._look_for_losses()
        _log.info("supervisor_started", team=name, namespace=self._settings.namespace)
        async with asyncio.TaskGroup() as turns:
            pulling = [
                asyncio.create_task(self._pull_requests(requests, turns)),
                asyncio.create_task(self._pull_inbox(inbox, turns)),
                asyncio.create_task(self._watch_log()),
            ]
            stopped = asyncio.create_task(stop.wait())
            done, _ = await asyncio.wait([*pulling, stopped], return_when=asyncio.FIRST_COMPLETED)
            for task in [*pulling, stopped]:
                task.cancel()
            await asyncio.wait([*pulling, stopped])
            failures = [error for task in done if task is not stopped and (error := task.exception()) is not None]
            await asyncio.gather(requests.close(), inbox.close())
        if failures:
            raise failures[0]
        _log.info("supervisor_stopped", team=name)

    async def _look_for_losses(self) -> None:
        """Streams that have lost their end are reported; what the log still knows of is sent again."""
        for loss in await lost_log(self._bus, self._subjects):
            _log.error("log_went_backwards", reason=loss, hint="docs/durability.md says what to do")
        for loss in await lost_work(self._bus, self._subjects, self._team.name, self._clock):
            _log.error("work_went_backwards", reason=loss, hint="what the log knows of is sent again")
            await self._send_everything()

    async def _send_everything(self) -> None:
        running: dict[str, None] = {}
        async for stored in self._bus.read("log", self._subjects.logs_of(self._team.name)):
            workflow = stored.subject.rpartition(".")[2]
            running[workflow] = None
            with contextlib.suppress(ContractError):
                if any(isinstance(entry, WorkflowEnded) for entry in commit_of(stored).entries):
                    del running[workflow]
        for workflow in running:
            with contextlib.suppress(DamagedLog):  # it is closed when the next input for it comes
                if (state := (await self._log.load(workflow)).state) is not None:
                    await self._emit_all(state, (), whole=True)

    async def _watch_log(self) -> None:
        """Raises `StreamLost` when the log has lost what this process wrote: it must not go on from memory then."""
        while True:
            await self._clock.sleep(self._settings.heartbeat)
            written, at = self._written
            recent = self._clock.monotonic() - at < min(_REMEMBERED, self._settings.retention_days * _DAY / 2)
            if written == 0 or not recent or await self._holds(written):
                continue
            await self._clock.sleep(_DEPOSED)
            if not await self._holds(written):
                raise StreamLost(
                    f"message {written} of {self._subjects.log_stream} was stored by this supervisor and the stream "
                    "ends before it: it was restored from an older copy, recreated, or its disk has lost data; this "
                    "process ends so that the next one begins from what is there; docs/durability.md says more"
                )

    async def _holds(self, sequence: int) -> bool:
        try:
            newest = await self._bus.last("log", self._subjects.logs_of(self._team.name))
        except BusUnavailable:
            return True  # not known to be gone
        return newest is not None and newest.sequence >= sequence

    # Taking

    async def _pull_requests(self, consumer: Consumer, turns: asyncio.TaskGroup) -> None:
        """Admission: no more requests are taken than there may be workflows running."""
        while True:
            room = self._settings.max_running - len(self._admitted)
            if room <= 0:
                await self._make_room()
                continue
            for delivery in await consumer.take(min(room, _BATCH)):
                received = read_request(delivery.message, self._team, self._settings.namespace)
                admission = received.admission
                self._admitted.add(admission.workflow_id)
                refusal = received.error if isinstance(received, RequestRefused) else None
                arrival = _Arrival(received, delivery, admission.request_id, refusal)
                self._arrived(admission.workflow_id, arrival, turns)

    async def _make_room(self) -> None:
        """Wait for a workflow to end, here or at another supervisor."""
        self._changed.clear()
        try:
            async with asyncio.timeout(_ROOM_AGAIN):
                await self._changed.wait()
        except TimeoutError:
            with contextlib.suppress(BusUnavailable):
                for workflow in sorted(self._admitted):
                    if await self._bus.last("log", self._subjects.outcome(self._team.name, workflow)):
                        self._remember_end(workflow)

    async def _pull_inbox(self, consumer: Consumer, turns: asyncio.TaskGroup) -> None:
        while True:
            for delivery in await consumer.take(_BATCH):
                try:
                    address = self._subjects.parse_inbox(delivery.message.subject)
                except ContractError as error:
                    turns.create_task(self._bury(delivery, None, error.kind, str(error)))
                    continue
                refusal = None
                try:
                    received = read_inbox(delivery.message, address)
                except ContractError as error:
                    if address.kind != "result":
                        turns.create_task(self._bury(delivery, address.workflow, error.kind, str(error)))
                        continue
                    received = unreadable_result(delivery.message, address, error)
                    refusal = AttemptError(kind=error.kind, message=str(error))
                event_id = getattr(received, "event_id", address.name)
                self._arrived(address.workflow, _Arrival(received, delivery, event_id, refusal), turns)

    def _arrived(self, workflow: str, arrival: _Arrival, turns: asyncio.TaskGroup) -> None:
        """Inputs of one workflow are dealt with one after the other, and together when several are there."""
        if workflow in self._waiting:
            self._waiting[workflow].append(arrival)
            return
        self._waiting[workflow] = [arrival]
        turns.create_task(self._work_off(workflow))

    # Dealing with it

    async def _work_off(self, workflow: str) -> None:
        with bind(workflow_id=workflow, team=self._team.name):
            while arrivals := self._waiting[workflow]:
                self._waiting[workflow] = []
                await self._turn_or_hand_back(workflow, arrivals)
            del self._waiting[workflow]

    async def _turn_or_hand_back(self, workflow: str, arrivals: Sequence[_Arrival]) -> None:
        try:
            await self._turn(workflow, arrivals)
        except BusUnavailable as error:
            self._forget(workflow, arrivals)
            _log.warning("inputs_handed_back", reason=str(error), inputs=len(arrivals))
            for arrival in arrivals:
                await arrival.delivery.nak(1.0)
        except DamagedLog as error:
            await self._close_damaged(workflow, arrivals, error)
        except Exception as error:
            self._forget(workflow, arrivals)
            _log.exception("inputs_failed", inputs=len(arrivals))
            for arrival in arrivals:
                if arrival.delivery.delivered < _PATIENCE:
                    await arrival.delivery.nak(float(arrival.delivery.delivered))
                else:
                    await self._bury(arrival.delivery, workflow, "bug", f"{type(error).__name__}: {error}")

    def _forget(self, workflow: str, arrivals: Iterable[_Arrival]) -> None:
        """What is known of the workflow may be stale. A request of it is admitted by whoever takes it next: if it kept
        its room here, and there is no other room and no other supervisor, nobody would."""
        self._heads.pop(workflow, None)
        if any(_begins(arrival.input) for arrival in arrivals):
            self._admitted.discard(workflow)
            self._changed.set()

    async def _turn(self, workflow: str, arrivals: Sequence[_Arrival]) -> None:
        """Load, decide, commit, emit, acknowledge."""
        passed("supervisor.received")
        again = any(arrival.delivery.delivered > 1 for arrival in arrivals)
        if workflow in self._ended and not again:
            self._admitted.discard(workflow)
            return await self._settle(workflow, arrivals)
        head = self._heads.get(workflow)
        recovering = head is None or again
        if head is None:
            head = await self._log.load(workflow)
            recovering = head.state is not None
        if head.state is None and not any(_begins(arrival.input) for arrival in arrivals):
            return await self._bury_strangers(workflow, arrivals)
        head, entries, raced = await self._commit(workflow, head, arrivals)
        if head.state is None:
            raise InvariantError(f"the inputs of {workflow} led to no state")
        self._heads[workflow] = head
        await self._emit_all(head.state, entries, whole=recovering or raced)
        passed("supervisor.emitted")
        await self._settle(workflow, arrivals, head.state)
        passed("supervisor.acked")
        self._note(head.state, entries)
        return None

    async def _commit(
        self, workflow: str, head: Head, arrivals: Sequence[_Arrival]
    ) -> tuple[Head, tuple[Entry, ...], bool]:
        """The head after the inputs, the entries committed for them, and whether what was sent before is unknown."""
        raced = False
        for _ in range(_RACES):
            around = Circumstances(self._clock.now(), tuple(await self._bus.registry.cards()))
            draft = consider(head.state, [arrival.input for arrival in arrivals], around)
            entries, state = tuple(draft.entries), draft.state
            if not entries or state is None:
                # Nothing is committed, so nothing has shown that the head is the newest. What means nothing to an older
                # one may be the very timer that another supervisor has armed since.
                newer = await self._log.load(workflow, head)
                if newer.sequence == head.sequence:
                    return head, (), raced
                head, raced = newer, True
                continue
            try:
                head = await self._log.commit(head, workflow, entries, state, arrivals[0].event_id)
                self._written = max(self._written, (head.sequence, self._clock.monotonic()))
                passed("supervisor.committed")
                return head, entries, raced
            except (Conflict, UnknownOutcome) as error:
                metrics.count(names.COMMIT_CONFLICTS, attributes={"error.type": error.kind})
                raced = True
                if isinstance(error, UnknownOutcome):
                    await self._clock.sleep(_UNKNOWN)
                head = await self._reload(workflow, head, error)
            except OversizeEvent as error:
                if len(arrivals) == 1:
                    _cut_down(arrivals[0], error)
                    continue
                for arrival in arrivals:
                    head, entries, _ = await self._commit(workflow, head, [arrival])
                    if head.state is not None:
                        record_spans(head.state, entries)
                return head, (), True
        raise InvariantError(f"{workflow} lost {_RACES} races for its log in a row")

    async def _reload(self, workflow: str, head: Head, error: Conflict | UnknownOutcome) -> Head:
        """What the log holds after `head`. One that does not end at `head`, with nothing after it, went backwards."""
        newer = await self._log.load(workflow, head)
        if isinstance(error, UnknownOutcome) or newer.sequence != head.sequence:
            return newer
        whole = await self._log.load(workflow)
        if whole.sequence == head.sequence:
            raise BusUnavailable(
                f"a commit to the log of {workflow} was refused, and nothing there says why; try again"
            )
        _log.error("log_went_backwards", sequence=head.sequence, hint="messages that the broker had stored are gone")
        return whole

    # Sending

    async def _emit_all(self, state: State, entries: Sequence[Entry], *, whole: bool) -> None:
        """Everything the entries added to the outbox, or all of it when what was sent before is not known."""
        if state.ended and not entries:
            ending = self._subjects.outcome(state.team, state.workflow_id)
            if await self._bus.last("log", ending) is not None:
                return  # the outcome is sent last: where it is, all the rest is too
        await self._tell_cancelled(state, entries)
        touched = None if whole else _touched(entries)
        if touched is not None and not touched and not entries:
            return
        first: list[Message] = []
        last: list[Message] = []
        for message in outbox(state, self._subjects, touched):
            (last if isinstance(message.event, Outcome) else first).append(message)
        new = 0
        for group in (first, last):
            if len(group) == 1:
                new += await self._emit(state, group[0])
            elif group:
                new += sum(await asyncio.gather(*(self._emit(state, message) for message in group)))
        if whole:
            _log.info("outbox_sent_again", sent=new, already_there=len(first) + len(last) - new, **_origin(state))
        if state.outcome is not None and state.reply_to:
            await self._bus.broadcast(state.reply_to, dump(state.outcome), {})

    async def _emit(self, state: State, message: Message) -> bool:
        """Whether it is new; it is on the bus in any case, or its attempt has failed."""
        headers = self._headers(state, message)
        try:
            if isinstance(message.event, DeadLetter):
                await store_letter(self._bus, message.subject, message.event, headers)
            elif message.schedule is not None and message.due is not None:
                new = await self._bus.schedule(
                    message.schedule, message.due, message.subject, dump(message.event), headers
                )
                passed("supervisor.sent")
                return new
            else:
                await self._bus.publish(message.subject, dump(message.event), headers, expect=0)
            passed("supervisor.sent")
        except Conflict:
            return False  # it is there already: sent before a crash, or by another supervisor
        except OversizeEvent as error:
            await self._fail_oversize(state, message, error)
        return True

    def _headers(self, state: State, message: Message) -> dict[str, str]:
        trace = state.trace
        span_id = message.span_id if tracing() else trace.span_id
        traceparent = f"00-{trace.trace_id}-{span_id}-{trace.flags:02x}"
        return encode(
            Envelope(
                id=message.id,
                type=message.event.event_type,
                source=f"/{self._subjects.namespace}/team/{state.team}",
                time=message.at,
                subject=state.workflow_id,
                correlation_id=state.correlation_id,
                causation_id=f"{state.workflow_id}-{message.commit}",
                traceparent=traceparent,
                tracestate=trace.tracestate,
                origin_traceparent=traceparent,
            )
        )

    async def _fail_oversize(self, state: State, message: Message, error: OversizeEvent) -> None:
        """A handoff that does not fit fails its attempt: the result is published as if its agent had said so."""
        handoff = message.event
        if not isinstance(handoff, Handoff):
            _log.error("event_too_large", subject=message.subject, reason=str(error))
            return
        now = self._clock.now()
        result = Result(
            workflow_id=handoff.workflow_id,
            task_id=handoff.task_id,
            attempt=handoff.attempt,
            agent=handoff.to_agent,
            status="failed",
            error=AttemptError(kind=ErrorKind.OVERSIZE, message=f"the handoff was not sent: {error}"),
            started_at=now,
            ended_at=now,
        )
        envelope = Envelope(
            id=f"{message.id}-oversize",
            type=Result.event_type,
            source=f"/{self._subjects.namespace}/team/{state.team}",
            time=now,
            subject=state.workflow_id,
            correlation_id=state.correlation_id,
            causation_id=message.id,
        )
        with contextlib.suppress(Conflict):
            await self._bus.publish(handoff.return_to, dump(result), encode(envelope), expect=0)

    async def _tell_cancelled(self, state: State, entries: Iterable[Entry]) -> None:
        """Agents at work on what nobody waits for any more are told at once; it does no harm if they miss it."""
        abandoned = [entry.task_id for entry in entries if isinstance(entry, TaskAbandoned)]
        if abandoned:
            body = dump(Cancellation(tasks=tuple(abandoned)))
            await self._bus.broadcast(self._subjects.live(state.workflow_id, "cancelled"), body, {})

    # Settling

    async def _settle(self, workflow: str, arrivals: Iterable[_Arrival], state: State | None = None) -> None:
        for arrival in arrivals:
            if arrival.refusal is not None:
                with bind(**_origin(state)):
                    await self._store_letter(arrival.delivery, workflow, arrival.refusal)
            await arrival.delivery.ack()

    async def _bury_strangers(self, workflow: str, arrivals: Sequence[_Arrival]) -> None:
        for arrival in arrivals:
            message = "no log of this workflow exists: it was never admitted here, or its log has aged out"
            await self._bury(arrival.delivery, workflow, "unknown_workflow", message)

    async def _bury(self, delivery: Delivery, workflow: str | None, kind: str, message: str) -> None:
        """Make a dead letter of an input and settle it; what cannot be stored now is handed back, not lost."""
        try:
            await self._store_letter(delivery, workflow, AttemptError(kind=kind, message=message))
        except BusUnavailable:
            await delivery.nak(1.0)
        else:
            await delivery.term(kind)

    async def _store_letter(self, delivery: Delivery, workflow: str | None, cause: AttemptError) -> None:
        _log.warning("input_refused", subject=delivery.message.subject, kind=cause.kind, reason=cause.message)
        await bury(
            self._bus,
            self._subjects,
            self._clock,
            delivery.message,
            origin=self._team.name,
            cause=cause,
            attempts=delivery.delivered,
            team=self._team.name,
            workflow=workflow,
        )
        metrics.count(names.DEAD_LETTERS, attributes={"pointsman.origin": self._team.name})

    async def _close_damaged(self, workflow: str, arrivals: Sequence[_Arrival], error: DamagedLog) -> None:
        """A log that cannot be folded is never guessed at: its caller is told, and its inputs become dead letters."""
        self._forget(workflow, arrivals)
        now = self._clock.now()
        outcome = Outcome(
            workflow_id=workflow,
            team=self._team.name,
            status="failed",
            answer=could_not(str(error), "Replay its request as a new workflow."),
            reason=str(error),
            correlation_id=workflow,
            trace_id="",
            started_at=now,
            ended_at=now,
            elapsed=0.0,
            sequential=0.0,
        )
        envelope = Envelope(
            id=f"{workflow}-outcome",
            type=Outcome.event_type,
            source=f"/{self._subjects.namespace}/team/{self._team.name}",
            time=now,
            subject=workflow,
        )
        subject = self._subjects.outcome(self._team.name, workflow)
        try:
            with contextlib.suppress(Conflict):
                await self._bus.publish(subject, dump(outcome), encode(envelope), expect=0)
        except BusUnavailable:
            for arrival in arrivals:
                await arrival.delivery.nak(1.0)
        else:
            for arrival in arrivals:
                await self._bury(arrival.delivery, workflow, error.kind, str(error))

    # Noting

    def _note(self, state: State, entries: Sequence[Entry]) -> None:
        """Spans, metrics and log lines of what was committed, and forgetting of what has ended."""
        record_spans(state, entries)
        origin = _origin(state)
        if _log.is_enabled_for(logging.DEBUG):
            for entry in entries:
                _log.debug(entry.kind, **_ids(entry), **origin)
        if state.ended:
            self._heads.pop(state.workflow_id, None)
            self._remember_end(state.workflow_id)
            if any(isinstance(entry, WorkflowEnded) for entry in entries):
                elapsed = state.outcome.elapsed if state.outcome else 0.0
                _log.info("workflow_ended", status=state.phase.value, elapsed=round(elapsed, 3), **origin)

    def _remember_end(self, workflow: str) -> None:
        self._admitted.discard(workflow)
        self._changed.set()
        self._ended[workflow] = None
        while len(self._ended) > _ENDED_KEPT:
            self._ended.popitem(last=False)


def _begins(each: Input) -> bool:
    return hasattr(each, "admission")


def _touched(entries: Iterable[Entry]) -> Set[str]:
    """The tasks and the timer that the entries are about, in their order."""
    tasks = [task_id for entry in entries if (task_id := getattr(entry, "task_id", None)) is not None]
    return dict.fromkeys([*tasks, *(entry.name for entry in entries if isinstance(entry, TimerArmed))]).keys()


def _origin(state: State | None) -> dict[str, str]:
    """What leads from a log line to the workflow's trace and to its caller. No span is open here that would say it."""
    if state is None:
        return {}
    trace = state.trace
    return {"trace_id": trace.trace_id, "span_id": trace.span_id, "correlation_id": state.correlation_id}


def _ids(entry: Entry) -> dict[str, object]:
    return {
        name: value for name in ("task_id", "attempt", "agent") if (value := getattr(entry, name, None)) is not None
    }


def _cut_down(arrival: _Arrival, error: OversizeEvent) -> None:
    """What the bus could carry but a log entry around it cannot is refused for its size."""
    failure = AttemptError(kind=ErrorKind.OVERSIZE, message=f"too large to be kept in the log: {error}")
    match arrival.input:
        case RequestReceived() as received:
            arrival.input = RequestRefused(received.admission, failure)
            arrival.refusal = failure
        case ResultReceived() as received if received.result.output is not None:
            result = received.result.model_copy(update={"status": "failed", "output": None, "error": failure})
            arrival.input = ResultReceived(received.event_id, result)
        case _:
            raise InvariantError(f"an input without a large body does not fit into a commit: {error}") from error
