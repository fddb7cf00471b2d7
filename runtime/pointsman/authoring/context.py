"""What a running attempt may know and do. A context speaks through a `Reporter`, so it needs no broker to exist."""

from __future__ import annotations

import asyncio
import copy
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from pydantic import JsonValue

from pointsman.authoring.attempt_record import AttemptRecord
from pointsman.authoring.ports import (
    AttemptHandle,
    AttemptUsage,
    RateLimiter,
    RecordingReporter,
    ReportedCall,
    Reporter,
    RunnableTool,
    StepJournal,
)
from pointsman.errors import ConfigurationError, InvalidTokenError, describe_error
from pointsman.telemetry import metrics, semconv, traces
from pointsman.telemetry.semconv import Attributes
from pointsman.util.process_groups import CompletedProcess, run_process
from pointsman_schemas.events import Delta, EmittedEvent, Handoff, Progress, TaskReport, Usage
from pointsman_schemas.ids import derive_id, token
from pointsman_schemas.strict_json import as_json_value
from pointsman_schemas.subjects import Subjects

__all__ = ["Context"]

T = TypeVar("T")

_REPORT_KINDS = frozenset({"progress", "tool", "chat"})

_enclosing_call: ContextVar[str] = ContextVar("pointsman_enclosing_call", default="")


class Context:
    """The attempt an agent is working on: what it was handed, how long it has, and a way to report.

    A function gets it by annotating a parameter with `Context`. In a tool, `idempotency_key` is that of the call.
    """

    def __init__(
        self,
        handoff: Handoff,
        reporter: Reporter,
        *,
        agent: str | None = None,
        journal: StepJournal | None = None,
        meters: RateLimiter | None = None,
        deliveries: int = 1,
        now: Callable[[], datetime] | None = None,
    ) -> None:
        self.handoff = handoff
        self.reporter = reporter
        self.agent = agent or handoff.to_agent
        self.step_journal = journal
        """Where a tool loop keeps its steps; None where nobody keeps them."""
        self.rate_limiter = meters
        """Who keeps the limits of model providers; None where nobody does."""
        self.deliveries = deliveries
        """How often this attempt was given to a worker: more than once where one left, or died, before its result."""
        self.now = now or _now
        """The time that deadlines are kept by, and reports tell: the broker's, whatever this machine's clock says."""
        self.idempotency_key = handoff.idempotency_key
        """The same for every attempt at the task (and, in a tool, for every try of the call): send it along with side
        effects, so that the other side can drop the second one."""
        self._usage = self._attempt_usage = AttemptUsage()
        self._handle = AttemptHandle()
        self._record = AttemptRecord(handoff, self.agent, journal, self.now, self._attempt_usage)
        """What was done that must not be done again."""
        self._counts: dict[str, int] = {}
        self._deps: tuple[object, ...] = ()
        try:
            self._loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            self._loop = None

    @classmethod
    def for_test(
        cls,
        input: object = None,
        *,
        agent: str = "agent",
        intent: str = "test",
        results: Iterable[TaskReport] = (),
        reporter: Reporter | None = None,
        journal: StepJournal | None = None,
        deps: Iterable[object] = (),
    ) -> Context:
        """A context with no broker behind it. Give it a `RecordingReporter` to see what was reported. Of `deps`, those
        given here come before the agent's own."""
        handoff = Handoff(
            workflow_id="wf_test",
            task_id="T1",
            attempt=1,
            from_agent="test",
            to_agent=agent,
            intent=intent,
            input=as_json_value(input, "input"),
            context=tuple(results),
            return_to=Subjects().result("test", "wf_test", agent, "T1", 1),
            deadline=datetime.now(UTC) + timedelta(hours=1),
            idempotency_key="wf_test-T1",
        )
        context = cls(handoff, RecordingReporter() if reporter is None else reporter, journal=journal)
        return context.with_deps(deps)

    # What was handed over

    @property
    def workflow_id(self) -> str:
        """The workflow that the task is of."""
        return self.handoff.workflow_id

    @property
    def feedback(self) -> str:
        """Why the last attempt's output would not do; nothing at the first attempt."""
        return self.handoff.feedback

    @property
    def task_id(self) -> str:
        """The task, as its plan calls it: unique within its workflow."""
        return self.handoff.task_id

    @property
    def attempt(self) -> int:
        """Which try at the task this is, from 1."""
        return self.handoff.attempt

    @property
    def intent(self) -> str:
        """What is to be done, in words."""
        return self.handoff.intent

    @property
    def deadline(self) -> datetime:
        """When the result is no longer waited for, in UTC. The card's `timeout` may end the attempt sooner."""
        return self.handoff.deadline

    @property
    def results(self) -> Mapping[str, TaskReport]:
        """What came of the tasks this one depends on, by task id."""
        return _Results({report.task_id: report for report in self.handoff.context})

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for the result any more. Blocking functions cannot be interrupted: let them ask."""
        return self._handle.cancelled

    def dep(self, kind: type[T]) -> T:
        """The one thing of type `kind` among what the agent's author gave it as `deps`: a database, a client.

        Raises:
            ConfigurationError: there is none.
        """
        found = next((each for each in self._deps if isinstance(each, kind)), None)
        if found is None:
            there = ", ".join(type(each).__name__ for each in self._deps) or "nothing"
            raise ConfigurationError(
                f"agent {self.agent} was asked for a {kind.__name__} and has {there}; give it to the agent as "
                "deps=[...]"
            )
        return found

    # What to tell the supervisor with the result

    @property
    def usage(self) -> Usage:
        """What the model calls of this attempt have used so far."""
        return self._attempt_usage.usage

    @property
    def event(self) -> str:
        """The domain event this task reacts to, in a choreography; its data is the input."""
        return self.handoff.event

    @property
    def events(self) -> tuple[EmittedEvent, ...]:
        """What this attempt has emitted so far."""
        return self._record.events

    @property
    def confidence(self) -> float | None:
        """What `set_confidence` was told last, from 0 to 1."""
        return self._attempt_usage.confidence

    @property
    def replan_hint(self) -> str | None:
        """What `replan` was told last."""
        return self._attempt_usage.replan_hint

    def record_usage(self, usage: Usage) -> None:
        """Add `usage` to what this attempt reports with its result, whether it succeeds or not."""
        self._usage.add(usage)

    def set_confidence(self, confidence: float) -> None:
        """Say how sure the output is, from 0 to 1. Raises `ValueError` outside of that."""
        if not 0 <= confidence <= 1:  # NaN is outside, too
            raise ValueError(f"confidence is {confidence!r}; expected a number from 0 to 1")
        self._usage.set_outcome_hints(confidence=float(confidence))

    def replan(self, reason: str) -> None:
        """Ask the supervisor to plan again once it has this result, and say why."""
        self._usage.set_outcome_hints(replan_hint=_without_surrogates(reason))

    # What to tell everybody

    async def progress(self, message: str, **data: object) -> None:
        """Report what is being done now. It is kept beside the log and shown by `watch`; it may be dropped, never wait.

        Raises:
            NotJsonError: `data` cannot be carried as strict JSON.
        """
        self.reporter.report(
            self._publish_event("progress", message=_without_surrogates(message), at=self.now(), data=data)
        )

    def stream_text(self, text: str) -> None:
        """Show a piece of text that is being written to whoever watches now. Nothing is kept."""
        self.reporter.stream_text(
            Delta(
                workflow_id=self.workflow_id,
                task_id=self.task_id,
                attempt=self.attempt,
                agent=self.agent,
                text=_without_surrogates(text),
            )
        )

    async def emit(self, name: str, data: object = None) -> None:
        """Publish the domain event `name` of this workflow, and return when it is stored.

        In a team with `Choreography`, agents that react to it get a task each once this attempt has succeeded.

        Emitting it again in a later attempt at the task stores nothing new, as long as the broker remembers the first.

        Raises:
            InvalidTokenError: `name` cannot stand in a subject, or is `progress`, `tool` or `chat`.
            NotJsonError: `data` cannot be carried as strict JSON.
            OversizeEventError: the event is larger than the broker takes.
        """
        if token(name, "event name") in _REPORT_KINDS:
            raise InvalidTokenError(f"the event name is {name!r}, which is how reports are called; choose another")
        event = self._publish_event(name, name=name, at=self.now(), data=data)
        key = self._next_key("event", name)
        await self.reporter.emit(event, key)
        in_tool = self.idempotency_key != self.handoff.idempotency_key
        await self._record.record_event(key, EmittedEvent(name=name, data=event.data), lasting=in_tool)

    def tool(self, name: str, *, call_id: str = "", description: str = "") -> AbstractAsyncContextManager[ReportedCall]:
        """Report the block as one run of the tool `name`: a span and a kept report, however the block ends."""
        title, attributes = semconv.execute_tool(name, call_id=call_id, agent=self.agent, description=description)
        return self._call("tool", name, title, attributes, "internal")

    def chat(
        self,
        provider: str,
        model: str,
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        structured: bool = False,
        attempt: int | None = None,
    ) -> AbstractAsyncContextManager[ReportedCall]:
        """Report the block as one model call: a span and a kept report, however the block ends."""
        title, attributes = semconv.chat(
            provider,
            model,
            agent=self.agent,
            max_tokens=max_tokens,
            temperature=temperature,
            structured=structured,
            attempt=attempt,
        )
        return self._call("chat", model, title, attributes, "client")

    async def call(self, tool: RunnableTool, /, **arguments: object) -> JsonValue:
        """Run a tool from code as a model would: checked, timed, retried and reported. `arguments` are by name what a
        model would give, so a tool's `Context` is not among them.

        Raises:
            TaskError: the arguments do not fit (kind `invalid_input`) or the tool's value does not (`invalid_output`).
            Exception: whatever the tool raised on its last try.
        """
        return await tool.run(arguments, self)

    async def run_process(
        self, *command: str, input: bytes = b"", cwd: Path | str | None = None, env: Mapping[str, str] | None = None
    ) -> CompletedProcess:
        """Run `command` and return its exit code and what it wrote. When the attempt is cancelled, times out or the
        worker leaves, the process and all that it started are ended: asked first, killed after 0.75 seconds.

        Raises:
            OSError: it cannot be started.
        """
        running = asyncio.ensure_future(run_process(*command, input=input, cwd=cwd, env=env))
        self._handle.processes.add(running)
        try:
            return await running
        finally:
            self._handle.processes.discard(running)

    def run_sync(self, work: Coroutine[Any, Any, T]) -> T:
        """From a plain function in its thread: run a coroutine, such as `context.progress("...")`, and wait for it."""
        if self._loop is None:
            raise RuntimeError("this context was made outside of an event loop; make it inside of one")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    # For tools

    def _next_key(self, kind: str, *parts: str) -> str:
        """A key for the next of equal things of this task: the n-th gets the same key in every attempt."""
        base = derive_id(kind, self.idempotency_key, *parts)
        count = self._counts[base] = self._counts.get(base, 0) + 1
        return derive_id(base, str(count))

    def with_key(self, idempotency_key: str) -> Context:
        """This context under another idempotency key, for one try: what the next one does counts from the first again.
        Usage, reports and cancellation are shared."""
        other = copy.copy(self)
        other.idempotency_key = idempotency_key
        other._counts = {}
        return other

    def _for_call(self) -> Context:
        """This context for one call that is kept: `_call_record` is what was said in it. All else is shared."""
        other = copy.copy(self)
        other._usage = AttemptUsage(parent=self._usage)
        return other

    @property
    def _call_record(self) -> Mapping[str, object]:
        """What is to be kept with the call that this context is for: fields of its step."""
        ledger = self._usage
        return {"usage": ledger.usage, "confidence": ledger.confidence, "replan_hint": ledger.replan_hint}

    def with_deps(self, deps: Iterable[object]) -> Context:
        """This context with `deps` behind those it has. Usage, reports and cancellation are shared."""
        other = copy.copy(self)
        other._deps = (*self._deps, *deps)
        return other

    # For whoever runs the attempt

    def cancel(self) -> None:
        """Nobody waits for the result any more, nor for the processes that run for it."""
        self._handle.cancelled = True
        for running in tuple(self._handle.processes):
            running.get_loop().call_soon_threadsafe(running.cancel)

    @asynccontextmanager
    async def _call(
        self, kind: str, name: str, title: str, attributes: Attributes, span_kind: traces.Kind
    ) -> AsyncIterator[ReportedCall]:
        started = self.now()
        outer = _enclosing_call.get()
        if not outer and (surrounding := traces.current_context()) is not None:
            outer = surrounding.span_id
        with traces.span(title, kind=span_kind, attributes=attributes, alone=kind == "chat") as span:
            # With tracing off the span's context is the surrounding one: the report needs an id of its own.
            recorded = span.context if traces.tracing_enabled() else None
            call = ReportedCall(span, recorded.span_id if recorded else secrets.token_hex(8), self._usage)
            _enclosing_call.set(call.span_id)
            try:
                yield call
            except asyncio.CancelledError:
                call.error = call.error or "cancelled"
                raise
            except BaseException as error:
                call.error = call.error or describe_error(error)
                raise
            finally:
                _enclosing_call.set(outer)
                ended = self.now()
                if kind == "tool":
                    about: Attributes = {
                        semconv.TOOL_NAME: name,
                        semconv.AGENT_NAME: self.agent,
                        semconv.ERROR_TYPE: "_OTHER"
                        if call.error
                        else None,  # the convention's word where no short one is known
                    }
                    metrics.observe(semconv.TOOL_DURATION, (ended - started).total_seconds(), about)
                self.reporter.report(
                    self._publish_event(
                        kind,
                        name=name,
                        at=started,
                        ended_at=ended,
                        error=call.error,
                        usage=call.usage,
                        span_id=call.span_id,
                        parent_span_id=outer,
                    )
                )

    def _publish_event(self, kind: str, *, at: datetime, data: object = None, **more: Any) -> Progress:
        return Progress(
            workflow_id=self.workflow_id,
            task_id=self.task_id,
            attempt=self.attempt,
            agent=self.agent,
            kind=kind,
            started_at=at,
            data=as_json_value(data, "data") if data else None,
            **more,
        )


class _Results(dict[str, TaskReport]):
    """Results by task id. What is not there is told with what is."""

    def __missing__(self, task_id: str) -> TaskReport:
        there = ", ".join(self) or "none, as the task depends on no other"
        raise KeyError(f"there is no result of {task_id!r}; there are those of: {there}")


def _without_surrogates(text: str) -> str:
    """`text` without halves of surrogate pairs."""
    return text.encode("utf-8", "replace").decode()


def _now() -> datetime:
    return datetime.now(UTC)
