"""The spans of workflows and tasks. The supervisor that commits the end of a span exports the span.

The log contains the ids and times of spans, so any supervisor can export the spans. If a supervisor commits an input
but does not acknowledge it, the next supervisor that receives the input exports the spans that the commit ended.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from functools import lru_cache, partial

from pointsman.core.evolve import apply_commit
from pointsman.core.model.lifecycle import Phase, TaskStatus
from pointsman.core.model.state import State, Task
from pointsman.engine.log.reader import read_commit
from pointsman.errors import PointsmanError
from pointsman.ports.bus import Bus, Delivery
from pointsman.ports.clock import Clock
from pointsman.telemetry import (
    SpanEvent,
    TraceContext,
    metrics,
    parse_traceparent,
    record,
    reserve_context,
    semconv,
    tracing_enabled,
)
from pointsman.telemetry.error_content import content_text
from pointsman.telemetry.trace_context import trace_context
from pointsman_schemas.card import AgentCard, Role
from pointsman_schemas.envelope import decode
from pointsman_schemas.events import ErrorKind
from pointsman_schemas.ids import span_id_for
from pointsman_schemas.log import Entry
from pointsman_schemas.subjects import Subjects

__all__ = ["SupervisorSpans", "log_context"]

_SPAN_ENTRIES = frozenset(("task_succeeded", "task_failed", "task_abandoned", "retry_scheduled", "workflow_ended"))
"""The kinds of entries that end a span or that a metric counts."""


def log_context(state: State) -> dict[str, str]:
    """Return the ids that link a log line to the workflow's trace. A supervisor has no open span to take them from."""
    trace = state.trace
    return {"trace_id": trace.trace_id, "span_id": trace.span_id, "correlation_id": state.correlation_id}


class SupervisorSpans:
    """Exports the spans of one team's workflows, and their durations as metrics. No method raises an error.

    Args:
        bus: The bus.
        subjects: The subjects of the namespace.
        clock: The clock.
        team: The team.
    """

    def __init__(self, bus: Bus, subjects: Subjects, clock: Clock, team: str) -> None:
        self._bus = bus
        self._subjects = subjects
        self._clock = clock
        self._team = team

    async def export_ended(self, state: State, entries: Sequence[Entry]) -> None:
        """Export a span for each task and workflow that committed entries ended.

        Args:
            state: The state after the entries.
            entries: The entries.
        """
        if not (tracing_enabled() or metrics.metrics_enabled()):
            return
        if _SPAN_ENTRIES.isdisjoint([entry.kind for entry in entries]):
            return
        history: Sequence[Entry] = entries
        if tracing_enabled() and state.trace.flags & 1 and _has_span_events(state, entries):
            with suppress(PointsmanError):  # without the log, the spans have no events
                log = self._subjects.log(self._team, state.workflow_id)
                history = [
                    entry async for stored in self._bus.read("log", log) for entry in read_commit(stored).entries
                ]
        _record(state, entries, history, await self._cards())

    async def export_missed(self, workflow: str, event_ids: Container[str]) -> None:
        """Export the spans that the commits of another supervisor ended.

        The other supervisor did not acknowledge the inputs of these commits, and so may not have exported the spans.

        Args:
            workflow: The workflow's id.
            event_ids: The ids of the events that led to these commits.
        """
        history: list[Entry] = []
        cards = await self._cards()
        state: State | None = None
        with suppress(PointsmanError):
            async for stored in self._bus.read("log", self._subjects.log(self._team, workflow)):
                commit = read_commit(stored)
                state = apply_commit(state, commit)
                history += commit.entries
                envelope, _ = decode(stored.headers, stored.body)
                causes = {envelope.causation_id if envelope else None}
                causes |= {getattr(entry, "event_id", None) for entry in commit.entries}
                if any(cause is not None and cause in event_ids for cause in causes):
                    _record(state, commit.entries, history, cards)

    async def _cards(self) -> Sequence[AgentCard]:
        """Read the cards of agents for the spans of tasks. Return no cards if the read fails."""
        if tracing_enabled():
            with suppress(PointsmanError):
                return await self._bus.registry.cards()
        return ()

    def export_processing(self, state: State, deliveries: Sequence[Delivery], started: datetime) -> None:
        """Export a span for inputs that were processed together or redelivered. The span links to each input's sender.

        A single input needs no such span on its first delivery, because the end of its sender's span shows this time.

        Args:
            state: The workflow's state.
            deliveries: The deliveries of the inputs.
            started: The start of the processing.
        """
        again = max(delivery.delivered for delivery in deliveries)
        if not tracing_enabled() or not state.trace.flags & 1 or (len(deliveries) == 1 and again == 1):
            return
        about = partial(
            semconv.process_inputs,
            self._subjects.namespace,
            self._team,
            subject=deliveries[0].message.subject,
            workflow_id=state.workflow_id,
            count=len(deliveries),
            delivered=again,
            correlation_id=state.correlation_id,
            server=self._bus.server,
        )
        workflow = trace_context(state.trace)
        record(
            about,
            context=reserve_context(workflow),
            parent_span_id=workflow.span_id,
            kind="consumer",
            started=started,
            ended=self._clock.now(),
            happenings=(SpanEvent(semconv.HANDOFF_REDELIVERED, started, {semconv.DELIVERED: again}),)
            if again > 1
            else (),
            links=(sent for delivery in deliveries if (sent := _sender_context(delivery)) is not None),
        )


def _sender_context(delivery: Delivery) -> TraceContext | None:
    """Return the context of the span that sent a message."""
    headers = {name.lower(): value for name, value in delivery.message.headers.items()}
    return parse_traceparent(headers.get("ce-traceparent") or headers.get("traceparent"), headers.get("tracestate"))


def _has_span_events(state: State, entries: Iterable[Entry]) -> bool:
    """Return True if the log contains events, such as retries, for the spans that `entries` end."""
    for entry in entries:
        match entry.kind:
            case "task_succeeded" | "task_failed" | "task_abandoned":
                task = state.tasks[entry.task_id]
                if task.attempt > 1 or task.rerouted or state.ignored_events:
                    return True
            case "workflow_ended":
                if state.revision > 1 or state.reached_limit or state.rejections:
                    return True
            case _:
                pass
    return False


def _record(state: State, entries: Iterable[Entry], history: Iterable[Entry], cards: Sequence[AgentCard]) -> None:
    ended: set[str] = (
        set()
    )  # tasks whose span is exported; after a refused answer, several entries may end the same task
    for entry in entries:
        match entry.kind:
            case "task_succeeded" | "task_failed" | "task_abandoned":
                task = state.tasks[entry.task_id]
                if task.started_at is not None and task.id not in ended:
                    _export_task(state, task, task.started_at, entry.at, cards, _task_events(history, task.id))
                ended.add(task.id)
            case "retry_scheduled":
                metrics.count(semconv.RETRIES, attributes={semconv.AGENT_NAME: entry.agent})
            case "workflow_ended":
                _export_workflow(state, entry.at, _workflow_events(history))
            case _:
                pass


@lru_cache(256)
def _duration_attributes(key: str, name: str, status: TaskStatus | Phase) -> metrics.Labels:
    return metrics.labels({key: name, semconv.STATUS: status.value})


def _task_events(history: Iterable[Entry], task_id: str) -> Iterator[SpanEvent]:
    for entry in history:
        if getattr(entry, "task_id", None) != task_id:
            continue
        match entry.kind:
            case "attempt_failed" if entry.error.kind == ErrorKind.NEEDS_ANSWER:
                yield SpanEvent(semconv.QUESTION_ASKED, entry.at, {semconv.ATTEMPT: entry.attempt})
            case "attempt_failed":
                failed: semconv.Attributes = {semconv.ATTEMPT: entry.attempt, semconv.ERROR_TYPE: entry.error.kind}
                yield SpanEvent(semconv.ATTEMPT_FAILED, entry.at, failed)
            case "retry_scheduled":
                retry: semconv.Attributes = {
                    semconv.ATTEMPT: entry.attempt,
                    semconv.AGENT_NAME: entry.agent,
                    "pointsman.delay": max(0.0, (entry.not_before - entry.at).total_seconds()),
                }
                yield SpanEvent(semconv.RETRY_SCHEDULED, entry.at, retry)
            case "task_held":
                held: semconv.Attributes = {
                    "pointsman.delay": (entry.until - entry.at).total_seconds(),
                    semconv.REASON: content_text(entry.reason),
                }
                yield SpanEvent(semconv.TASK_HELD, entry.at, held)
            case "task_dispatched" if entry.fallback_for is not None:
                stood: semconv.Attributes = {
                    semconv.AGENT_NAME: entry.agent,
                    "pointsman.fallback_for": entry.fallback_for,
                }
                yield SpanEvent(semconv.FALLBACK_USED, entry.at, stood)
            case "task_reopened":
                yield SpanEvent(semconv.TASK_REOPENED, entry.at, {})
            case "result_ignored":
                ignored: semconv.Attributes = {
                    semconv.ATTEMPT: entry.attempt,
                    semconv.REASON: content_text(entry.reason),
                }
                yield SpanEvent(semconv.RESULT_IGNORED, entry.at, ignored)
            case _:
                pass


def _workflow_events(history: Iterable[Entry]) -> Iterator[SpanEvent]:
    planned = False
    for entry in history:
        match entry.kind:
            case "task_added" if entry.role is Role.PLAN:
                if planned:
                    yield SpanEvent(semconv.REPLANNED, entry.at, {semconv.TASK_ID: entry.task_id})
                planned = True
            case "plan_rejected":
                said: semconv.Attributes = {
                    "pointsman.problem_count": len(entry.problems),
                    "pointsman.problems": tuple(filter(None, map(content_text, entry.problems))) or None,
                }
                yield SpanEvent(semconv.PLAN_REJECTED, entry.at, said)
            case "limit_reached":
                limit: semconv.Attributes = {"pointsman.limit": entry.limit, semconv.REASON: content_text(entry.detail)}
                yield SpanEvent(semconv.LIMIT_REACHED, entry.at, limit)
            case _:
                pass


def _export_task(
    state: State,
    task: Task,
    started: datetime,
    ended: datetime,
    cards: Sequence[AgentCard],
    happenings: Iterable[SpanEvent],
) -> None:
    seconds = (ended - started).total_seconds()
    metrics.observe_series(
        semconv.TASK_DURATION, seconds, _duration_attributes(semconv.AGENT_NAME, task.agent, task.status)
    )
    if not tracing_enabled():
        return

    def about() -> tuple[str, semconv.Attributes]:
        card = next((card for card in cards if card.name == task.agent), None)
        return semconv.task(
            task.role.value,
            task.agent,
            workflow_id=state.workflow_id,
            task_id=task.id,
            attempts=task.attempt,
            correlation_id=state.correlation_id,
            status=task.status.value,
            model=card.model if card else None,
            version=card.version if card else None,
        )

    trace = state.trace
    error = (
        (task.error.kind, content_text(task.error.for_operators) or task.error.kind)
        if task.error and task.status is TaskStatus.FAILED
        else None
    )
    record(
        about,
        context=trace_context(trace, task.span_id),
        parent_span_id=trace.span_id,
        kind="internal" if task.role is Role.PLAN else "client",
        started=started,
        ended=ended,
        error=error,
        happenings=happenings,
    )


def _export_workflow(state: State, ended: datetime, happenings: Iterable[SpanEvent]) -> None:
    seconds = (ended - state.round_began_at).total_seconds()
    metrics.observe_series(
        semconv.WORKFLOW_DURATION, seconds, _duration_attributes(semconv.WORKFLOW_NAME, state.team, state.phase)
    )
    if not tracing_enabled():
        return
    about = partial(
        semconv.invoke_workflow,
        state.team,
        workflow_id=state.workflow_id,
        correlation_id=state.correlation_id,
        status=state.phase.value,
    )
    trace = state.trace
    reason = state.outcome.reason if state.outcome else ""
    # The span of a later round is a child of the first round's span, which was exported at the end of the first round.
    own_span = None if state.round == 1 else span_id_for(state.workflow_id, f"round/{state.round}")
    record(
        about,
        context=trace_context(trace, own_span),
        parent_span_id=trace.parent_span_id if own_span is None else trace.span_id,
        kind="internal",
        started=state.round_began_at,
        ended=ended,
        error=(state.phase.value, content_text(reason) or state.phase.value) if state.phase is Phase.FAILED else None,
        happenings=happenings,
    )
