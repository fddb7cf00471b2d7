"""One attempt: an agent works on a handoff until the handler returns, is interrupted, or reaches its time limit."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from threading import Thread
from typing import Literal

from pydantic import JsonValue

from pointsman.authoring.agent import Agent, FunctionAgent
from pointsman.authoring.attempt_state import AttemptState
from pointsman.authoring.context import Context
from pointsman.authoring.files import FileTransfer
from pointsman.authoring.interceptor import AttemptInvocation, Interceptor, intercept_attempt
from pointsman.authoring.ports import MessageReader, RateLimiter, Reporter, StepJournal
from pointsman.engine.worker.executors import Execution, Executor
from pointsman.engine.worker.loop_watchdog import attribute_current_task
from pointsman.engine.worker.timeout_scheduler import TimeoutScheduler
from pointsman.errors import (
    AnswerRequiredError,
    ConfigurationError,
    ContractError,
    ModelError,
    NotJsonError,
    RefusedError,
    TaskError,
    describe_error,
    error_text,
)
from pointsman.ports.clock import Clock
from pointsman.telemetry import get_logger
from pointsman.util.threads import collect_running_threads
from pointsman_schemas.events import (
    ATTEMPT_STARTED,
    MAX_QUESTIONS_AT_ONCE,
    MAX_RETRY_AFTER_S,
    AttemptError,
    ErrorKind,
    Handoff,
    Progress,
    QuestionRequest,
    Result,
    Usage,
)
from pointsman_schemas.strict_json import as_json_value

__all__ = ["CANCEL_GRACE_S", "Attempt"]

CANCEL_GRACE_S = 1.0  # seconds that a cancelled handler may take to end; afterwards its slot is free
_UNSTOPPABLE_REASON = (
    "the handler swallows cancellation, or a handler of this worker blocks the event loop, as time.sleep does in an "
    "async function; let CancelledError pass, and write blocking code as a plain function"
)

_InterruptReason = Literal["cancelled", "shutdown", "timeout"]

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class HandlerOutcome:
    """Outcome of a handler."""

    status: Literal["succeeded", "failed", "refused"]
    output: JsonValue = None
    error: AttemptError | None = None
    questions: tuple[QuestionRequest, ...] = ()


class Attempt:
    """Attempt of an agent at a handoff. If the agent raises an exception, the attempt still ends with a `Result`.

    Args:
        agent: Agent that works on the handoff.
        handoff: Handoff to work on.
        reporter: Publisher of the attempt's progress and events.
        executor: Executor that runs the agent.
        clock: Clock for the deadline and the times in the result.
        timeouts: Scheduler that interrupts the attempt with `timeout` at its time limit.
        journal: Journal of the attempt's steps. Default: no journal.
        rate_limiter: Limiter of the agent's model calls. Default: no limits.
        deliveries: Number of deliveries of the handoff, this delivery included. Default: 1.
        interceptors: Interceptors of the attempt, outermost first. Default: none.
        deps: Dependencies of the agent. Default: none.
        transfer: Object store of the attempt's files. Default: none.
        message_reader: Reader of the messages to the workflow. Default: none.
    """

    def __init__(self, agent: Agent, handoff: Handoff, reporter: Reporter, executor: Executor, clock: Clock,
                 timeouts: TimeoutScheduler[Attempt], journal: StepJournal | None = None,
                 rate_limiter: RateLimiter | None = None, deliveries: int = 1,
                 interceptors: Sequence[Interceptor] = (), deps: Sequence[object] = (),
                 transfer: FileTransfer | None = None,
                 message_reader: MessageReader | None = None) -> None:  # fmt: skip
        self.handoff = handoff
        self._agent = agent
        self._name, self._revision = agent.card.name, agent.card.revision
        self._reporter = reporter
        self._journal = journal
        self._rate_limiter = rate_limiter
        self._deliveries = deliveries
        self._interceptors = interceptors
        self._deps = deps
        self._transfer = transfer
        self._message_reader = message_reader
        self._executor = executor
        self._clock = clock
        self._timeouts = timeouts
        self._state: AttemptState | None = None
        self._threads: list[Thread] = []
        self._execution: Execution[HandlerOutcome] | None = None
        self._started_at: datetime | None = None
        self._interrupted: asyncio.Future[_InterruptReason | None] = asyncio.get_running_loop().create_future()
        """Reason for stopping the handler, or None if the handler has ended without a stop."""

    def interrupt(self, why: _InterruptReason) -> None:
        """Stop the attempt, or prevent its start, because the task is cancelled, the worker stops, or time is up."""
        if not self._interrupted.done():
            self._interrupted.set_result(why)

    def report_started(self) -> None:
        """Report that the attempt has started. Otherwise, an agent without progress would publish only its result."""
        if self._started_at is not None:
            at_work = Progress(
                workflow_id=self.handoff.workflow_id,
                task_id=self.handoff.task_id,
                attempt=self.handoff.attempt,
                agent=self._name,
                kind="progress",
                name=ATTEMPT_STARTED,
                message="at work",
                started_at=self._started_at,
            )
            self._reporter.report(at_work)

    def failed_result(self, kind: ErrorKind, message: str, *, retryable: bool = False) -> Result:
        """Return a failed result, which replaces the result of the agent."""
        return self._build_result(
            HandlerOutcome("failed", error=AttemptError(kind=kind, message=message, retryable=retryable))
        )

    async def not_started_result(self, kind: ErrorKind, message: str, *, retryable: bool = False) -> Result:
        """Return the failed result of an attempt that this worker does not start.

        The result includes the usage of the steps that earlier workers recorded for the same attempt.
        """
        used = Usage()
        if self._journal is not None:
            with suppress(ContractError):  # a step of another release may be unreadable, so its usage is unknown
                steps = (await self._journal.load()).values()
                used = sum((step.usage for step in steps if step.attempt == self.handoff.attempt), used)
        return self.failed_result(kind, message, retryable=retryable).model_copy(update={"usage": used})

    async def run(self) -> Result | None:
        """Run the agent and return the result. Return None if the worker stops first; the broker then redelivers."""
        deadline = self.handoff.deadline
        self._started_at = self._clock.now()
        left = (deadline - self._started_at).total_seconds()
        if left <= 0:
            return await self.not_started_result(ErrorKind.TIMEOUT, self._timeout_message(-left), retryable=True)
        limit = min(left, self._agent.card.timeout)
        self._execution = execution = self._executor.start(self._run_agent())
        why = await self._wait_for_end(execution, limit)
        if execution.future.done() and (why is None or why == "shutdown"):
            if not execution.future.cancelled():
                return self._build_result(execution.future.result())
            if why is None:
                return self.failed_result(ErrorKind.HANDLER, "the handler cancelled its own task", retryable=True)
        if why == "shutdown":
            return None
        if why == "cancelled":
            return self.failed_result(ErrorKind.CANCELLED, f"the task is cancelled; {self._interrupted_outcome()}")
        return self.failed_result(
            ErrorKind.TIMEOUT,
            f"no result within {limit:.1f} s, the limit by the task's deadline or by the timeout of {self._name}; "
            f"{self._interrupted_outcome()}",
            retryable=True,
        )

    @property
    def orphaned_handlers(self) -> int:
        """Number of the attempt's threads and handlers that still run.

        After the attempt, such a thread or handler is orphaned: a thread cannot be forced to stop, and neither can a
        handler that swallows cancellation.
        """
        handler = self._execution is not None and not self._execution.future.done()
        return handler + sum(thread.is_alive() for thread in self._threads)

    def _timeout_message(self, seconds: float) -> str:
        deadline = f"its deadline {self.handoff.deadline.isoformat()} passed {seconds:.1f} s before a worker was free"
        if (before := self._deliveries - 1) == 0:
            return f"the handoff waited too long: {deadline}; the attempt was not started"
        times = "once" if before == 1 else f"{before} times"
        return (
            f"the handoff was delivered {times} without a result, then {deadline}; the attempt was not started again; "
            f"check if workers of {self._name} were killed, ran out of memory or exited during an attempt"
        )

    def _interrupted_outcome(self) -> str:
        """Describe the handler after it was requested to stop."""
        if self._execution is not None and not self._execution.future.done():
            return f"the handler did not stop and still runs: {_UNSTOPPABLE_REASON}"
        return (
            "a thread of the handler did not stop and still runs"
            if self.orphaned_handlers
            else "the handler was stopped"
        )

    async def _wait_for_end(self, execution: Execution[HandlerOutcome], limit: float) -> _InterruptReason | None:
        """Wait for the end of the handler. Return the reason of a stop, or None if the handler ended without a stop."""
        execution.future.add_done_callback(self._on_execution_done)
        self._timeouts.watch(self, limit)
        try:
            why = await self._interrupted
            if why is None or execution.future.done():
                return None
            if self._state is not None:
                self._state.cancel()
            execution.cancel()
            await asyncio.wait({execution.future}, timeout=CANCEL_GRACE_S)
            if not execution.future.done():
                _log.error(
                    "handler_abandoned",
                    reason=why,
                    hint=_UNSTOPPABLE_REASON,
                )
            return why
        except asyncio.CancelledError:
            execution.cancel()
            raise
        finally:
            self._timeouts.cancel(self)

    def _on_execution_done(self, _: asyncio.Future[HandlerOutcome]) -> None:
        if not self._interrupted.done():
            self._interrupted.set_result(None)

    async def _run_agent(self) -> HandlerOutcome:
        """Run the agent on the agents' loop and return the outcome. Only cancellation is raised to the caller."""
        self._threads = collect_running_threads()
        attribute_current_task(self._name, self.handoff)
        self._state = state = AttemptState(
            self.handoff,
            self._reporter,
            agent=self._name,
            journal=self._journal,
            rate_limiter=self._rate_limiter,
            deliveries=self._deliveries,
            now=self._clock.now,
            deps=self._deps,
            interceptors=self._interceptors,
            transfer=self._transfer,
            message_reader=self._message_reader,
        )
        context = Context(state)
        try:
            if self._interceptors:
                invocation = AttemptInvocation(self._agent.card, self.handoff, context)
                output = await intercept_attempt(self._interceptors, invocation, self._call_agent)
            else:
                output = await self._agent.run(self.handoff, context)
            # A FunctionAgent has converted its output to JSON already. An interceptor may replace the output.
            if self._interceptors or type(self._agent) is not FunctionAgent:
                output = as_json_value(output, repair_text=True)
            return HandlerOutcome("succeeded", output=output)
        except NotJsonError as error:
            cause = AttemptError(
                kind=ErrorKind.INVALID_OUTPUT, message=f"the output of agent {self._name} is not JSON: {error}"
            )
            return HandlerOutcome("failed", error=cause)
        except RefusedError as error:
            return HandlerOutcome(
                "refused", error=_attempt_error(error.kind, error, error.retryable, error.retry_after)
            )
        except AnswerRequiredError as error:
            cause = _attempt_error(error.kind, error, False, None)
            return HandlerOutcome("failed", error=cause, questions=_all_questions(error.questions, state))
        except BaseExceptionGroup as group:
            asked = _questions_of(group)
            if asked is None:
                return self._raised(group)
            cause = _attempt_error(AnswerRequiredError.kind, AnswerRequiredError(asked), False, None)
            return HandlerOutcome("failed", error=cause, questions=_all_questions(asked, state))
        except TaskError as error:
            made = (
                error.unusable_output and error.unusable_output.encode("utf-8", "replace").decode()
            )  # replace unpaired surrogates, which the result cannot contain
            return HandlerOutcome("failed", made, _attempt_error(error.kind, error, error.retryable, error.retry_after))
        except ModelError as error:
            return HandlerOutcome("failed", error=_attempt_error(error.kind, error, error.retryable, error.retry_after))
        except ConfigurationError as error:  # no retry, because an error of the author is the same in every attempt
            return HandlerOutcome("failed", error=_attempt_error(error.kind, error, False, None))
        except asyncio.CancelledError:
            raise
        # A handler's `exit()` or GeneratorExit ends the attempt, not the worker. If this coroutine is closed, the
        # `except` below returns at once, as `close` requires.
        except BaseException as error:
            return self._raised(error)

    def _raised(self, error: BaseException) -> HandlerOutcome:
        _log.warning("handler_raised", exc_info=error)
        cause = AttemptError(
            kind=ErrorKind.HANDLER,
            message=f"agent {self._name} raised {type(error).__name__}",
            detail=error_text(error),
            retryable=True,
        )
        return HandlerOutcome("failed", error=cause)

    async def _call_agent(self, invocation: AttemptInvocation) -> JsonValue:
        return await self._agent.run(invocation.handoff, invocation.context)

    def _build_result(self, ending: HandlerOutcome) -> Result:
        now, state = self._clock.now(), self._state
        return Result(
            workflow_id=self.handoff.workflow_id,
            task_id=self.handoff.task_id,
            attempt=self.handoff.attempt,
            agent=self._name,
            status=ending.status,
            output=ending.output,
            error=ending.error,
            questions=ending.questions,
            usage=state.attempt_usage.usage if state else Usage(),
            confidence=state.attempt_usage.confidence if state else None,
            replan_hint=state.attempt_usage.replan_hint if state else None,
            files=tuple(state.files.returned) if state and ending.status == "succeeded" else (),
            events=state.record.events if state else (),
            messages_read=state.messages.last_read if state else 0,
            revision=self._revision,
            started_at=self._started_at or now,
            ended_at=now,
        )


def _all_questions(raised: Sequence[QuestionRequest], state: AttemptState) -> tuple[QuestionRequest, ...]:
    """Return the questions that ended the attempt, and the other questions that the attempt asked before its end."""
    more = (each for each in state.record.questions if each not in raised)
    return (*raised, *more)[:MAX_QUESTIONS_AT_ONCE]


def _questions_of(group: BaseExceptionGroup[BaseException]) -> tuple[QuestionRequest, ...] | None:
    """Return the questions of a group of errors; None if the group has an error without a question."""
    asked, other = group.split(AnswerRequiredError)
    if asked is None or other is not None:
        return None
    return tuple(each for error in _leaves(asked) for each in error.questions)


def _leaves(group: BaseExceptionGroup[AnswerRequiredError]) -> Iterator[AnswerRequiredError]:
    for each in group.exceptions:
        if isinstance(each, BaseExceptionGroup):
            yield from _leaves(each)
        else:
            yield each


def _attempt_error(kind: str, error: BaseException, retryable: bool, retry_after: float | None) -> AttemptError:
    if retry_after is not None:
        retry_after = min(max(retry_after, 0.0), MAX_RETRY_AFTER_S) if math.isfinite(retry_after) else None
    return AttemptError(kind=kind, message=describe_error(error), retryable=retryable, retry_after=retry_after)
