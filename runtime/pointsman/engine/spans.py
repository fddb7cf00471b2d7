"""The spans a supervisor owns: the workflow's and its tasks', exported by whoever commits their end."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from pointsman.core.state import State, Task
from pointsman.core.transitions import Phase, TaskStatus
from pointsman.telemetry import TraceContext, metrics, names, record, tracing
from pointsman_schemas.card import Role
from pointsman_schemas.log import (
    Entry,
    RetryScheduled,
    TaskAbandoned,
    TaskFailed,
    TaskSucceeded,
    TraceOrigin,
    WorkflowEnded,
)

__all__ = ["log_ids", "record_spans", "trace_context"]


def trace_context(trace: TraceOrigin, span_id: str | None = None) -> TraceContext:
    """The context of the workflow's own span, or of one of its other spans."""
    return TraceContext(trace.trace_id, span_id or trace.span_id, trace.flags, trace.tracestate)


def log_ids(state: State) -> dict[str, str]:
    """What leads from a log line to the workflow's trace and to its caller. No span is open here that would say it."""
    trace = state.trace
    return {"trace_id": trace.trace_id, "span_id": trace.span_id, "correlation_id": state.correlation_id}


def record_spans(state: State, entries: Iterable[Entry]) -> None:
    """Export a span for each task and workflow that `entries` ended, and measure them."""
    ended: set[str] = set()  # an answer that came and was refused is one end
    for entry in entries:
        match entry:
            case TaskSucceeded() | TaskFailed() | TaskAbandoned():
                task = state.tasks[entry.task_id]
                if task.started_at is not None and task.id not in ended:
                    _task_ended(state, task, task.started_at, entry.at)
                ended.add(task.id)
            case RetryScheduled():
                metrics.count(names.RETRIES, attributes={names.AGENT_NAME: entry.agent})
            case WorkflowEnded():
                _workflow_ended(state, entry.at)
            case _:
                pass


def _task_ended(state: State, task: Task, started: datetime, ended: datetime) -> None:
    seconds = (ended - started).total_seconds()
    metrics.observe(names.TASK_DURATION, seconds, {names.AGENT_NAME: task.agent, names.STATUS: task.status.value})
    if not tracing():
        return
    name, attributes = names.task(
        task.role.value,
        task.agent,
        workflow_id=state.workflow_id,
        task_id=task.id,
        attempts=task.attempt,
        correlation_id=state.correlation_id,
        status=task.status.value,
    )
    trace = state.trace
    error = (task.error.kind, task.error.message) if task.error and task.status is TaskStatus.FAILED else None
    record(
        name,
        context=trace_context(trace, task.span_id),
        parent_span_id=trace.span_id,
        kind="internal" if task.role is Role.PLAN else "client",
        started=started,
        ended=ended,
        attributes=attributes,
        error=error,
    )


def _workflow_ended(state: State, ended: datetime) -> None:
    seconds = (ended - state.started_at).total_seconds()
    metrics.observe(names.WORKFLOW_DURATION, seconds, {names.TEAM: state.team, names.STATUS: state.phase.value})
    if not tracing():
        return
    name, attributes = names.invoke_workflow(
        state.team, workflow_id=state.workflow_id, correlation_id=state.correlation_id, status=state.phase.value
    )
    trace = state.trace
    reason = state.outcome.reason if state.outcome else ""
    record(
        name,
        context=trace_context(trace),
        parent_span_id=trace.parent_span_id,
        kind="internal",
        started=state.started_at,
        ended=ended,
        attributes=attributes,
        error=(state.phase.value, reason) if state.phase is Phase.FAILED else None,
    )
