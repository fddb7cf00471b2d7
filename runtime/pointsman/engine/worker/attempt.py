"""One attempt: an agent works on a handoff until it ends by itself, is told to stop, or its time is over."""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from threading import Thread
from typing import Literal

from pydantic import JsonValue

from pointsman.authoring.agent import Agent, FunctionAgent
from pointsman.authoring.context import Context
from pointsman.authoring.ports import Journal, Meters, Reporter
from pointsman.engine.worker.executors import Execution, Handlers
from pointsman.engine.worker.timeout_scheduler import Deadlines
from pointsman.errors import (
    ConfigurationError,
    ContractError,
    ModelError,
    NeedsApproval,
    NotJsonError,
    Refused,
    TaskError,
    describe_error,
)
from pointsman.ports.clock import Clock
from pointsman.telemetry import get_logger
from pointsman.util.threads import threads_left
from pointsman_schemas.events import (
    ATTEMPT_STARTED,
    MAX_RETRY_AFTER_S,
    AttemptError,
    ErrorKind,
    Handoff,
    Progress,
    Result,
    ToolApprovalRequest,
    Usage,
)
from pointsman_schemas.strict_json import as_json_value

__all__ = ["ABANDON", "Attempt"]

ABANDON = 1.0  # seconds a cancelled handler has to end; then its slot is given to work that does
_UNSTOPPABLE = (
    "it swallows cancellation, or it or another handler of this worker blocks their event loop, as time.sleep does in "
    "an async function; let CancelledError pass, and write what blocks as a plain function"
)

_Why = Literal["cancelled", "shutdown", "timeout"]

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Ending:
    """What came of running a handler."""

    status: Literal["succeeded", "failed", "refused"]
    output: JsonValue = None
    error: AttemptError | None = None
    approvals: tuple[ToolApprovalRequest, ...] = ()


class Attempt:
    """`agent`'s try at `handoff`, run by `handlers`. Whatever the agent does, what comes of it is a `Result`.

    `deadlines` interrupt what they watch with a `timeout`.
    """

    def __init__(self, agent: Agent, handoff: Handoff, reporter: Reporter, handlers: Handlers, clock: Clock,
                 deadlines: Deadlines[Attempt], journal: Journal | None = None,
                 meters: Meters | None = None, deliveries: int = 1) -> None:  # fmt: skip
        self.handoff = handoff
        self._agent = agent
        self._name = agent.card.name
        self._reporter = reporter
        self._journal = journal
        self._meters = meters
        self._deliveries = deliveries
        self._handlers = handlers
        self._clock = clock
        self._deadlines = deadlines
        self._context: Context | None = None
        self._threads: list[Thread] = []
        self._execution: Execution[_Ending] | None = None
        self._began: datetime | None = None
        self._over: asyncio.Future[_Why | None] = asyncio.get_running_loop().create_future()
        """Why the handler must stop; None when it has ended by itself."""

    def interrupt(self, why: _Why) -> None:
        """Stop it, or do not start it: nobody waits for the task any more, the worker must leave, or time is over."""
        if not self._over.done():
            self._over.set_result(why)

    def tell_begun(self) -> None:
        """Say to whoever watches that somebody works on it: until its end nothing else may say so."""
        if self._began is not None:
            at_work = Progress(
                workflow_id=self.handoff.workflow_id,
                task_id=self.handoff.task_id,
                attempt=self.handoff.attempt,
                agent=self._name,
                kind="progress",
                name=ATTEMPT_STARTED,
                message="at work",
                started_at=self._began,
            )
            self._reporter.report(at_work)

    def failed(self, kind: ErrorKind, message: str, *, retryable: bool = False) -> Result:
        """The answer when there is none of the agent's."""
        return self._result(_Ending("failed", error=AttemptError(kind=kind, message=message, retryable=retryable)))

    async def not_started(self, kind: ErrorKind, message: str, *, retryable: bool = False) -> Result:
        """The answer when it is not begun here. What the steps of workers before have used was used all the same."""
        used = Usage()
        if self._journal is not None:
            with suppress(ContractError):  # of another release: nobody can say
                steps = (await self._journal.recall()).values()
                used = sum((step.usage for step in steps if step.attempt == self.handoff.attempt), used)
        return self.failed(kind, message, retryable=retryable).model_copy(update={"usage": used})

    async def run(self) -> Result | None:
        """What came of it; None when the worker leaves before it has ended: another one takes the handoff."""
        deadline = self.handoff.deadline
        self._began = self._clock.now()
        left = (deadline - self._began).total_seconds()
        if left <= 0:
            return await self.not_started(ErrorKind.TIMEOUT, self._too_late(-left), retryable=True)
        limit = min(left, self._agent.card.timeout)
        self._execution = execution = self._handlers.start(self._run())
        why = await self._wait(execution, limit)
        if execution.future.done() and (why is None or why == "shutdown"):
            if not execution.future.cancelled():
                return self._result(execution.future.result())
            if why is None:
                return self.failed(ErrorKind.HANDLER, "the handler was cancelled from inside", retryable=True)
        if why == "shutdown":
            return None
        if why == "cancelled":
            return self.failed(ErrorKind.CANCELLED, f"nobody waits for the task any more; {self._stopped()}")
        return self.failed(
            ErrorKind.TIMEOUT,
            f"no result within {limit:.1f} s, the shorter of the task's deadline and the timeout of {self._name}; "
            f"{self._stopped()}",
            retryable=True,
        )

    @property
    def left_running(self) -> int:
        """How many of its threads and handlers were told to stop and still run. Neither a thread nor what swallows
        cancellation can be made to."""
        handler = self._execution is not None and not self._execution.future.done()
        return handler + sum(thread.is_alive() for thread in self._threads)

    def _too_late(self, seconds: float) -> str:
        deadline = f"its deadline {self.handoff.deadline.isoformat()} passed {seconds:.1f} s before a worker was free"
        if (before := self._deliveries - 1) == 0:
            return f"the handoff waited too long: {deadline}; it was not started"
        times = "once" if before == 1 else f"{before} times"
        return (
            f"the handoff was delivered {times} and nobody who took it gave a result, then {deadline}; it was not "
            f"started again. See whether the workers of {self._name} die while they work: killed, out of memory, exited"
        )

    def _stopped(self) -> str:
        """What became of a handler that had to stop."""
        if self._execution is not None and not self._execution.future.done():
            return f"the handler was told to stop and still runs: {_UNSTOPPABLE}"
        return "the handler was told to stop and still runs" if self.left_running else "the handler was stopped"

    async def _wait(self, execution: Execution[_Ending], limit: float) -> _Why | None:
        """Why the handler was stopped; None when it ended by itself."""
        execution.future.add_done_callback(self._ended)
        self._deadlines.watch(self, limit)
        try:
            why = await self._over
            if why is None or execution.future.done():
                return None
            if self._context is not None:
                self._context.cancel()
            execution.cancel()
            await asyncio.wait({execution.future}, timeout=ABANDON)
            if not execution.future.done():
                _log.error(
                    "handler_abandoned",
                    reason=why,
                    hint=_UNSTOPPABLE,
                )
            return why
        except asyncio.CancelledError:
            execution.cancel()
            raise
        finally:
            self._deadlines.forget(self)

    def _ended(self, _: asyncio.Future[_Ending]) -> None:
        if not self._over.done():
            self._over.set_result(None)

    async def _run(self) -> _Ending:
        """Run the agent, on its own loop, and say what came of it. Only cancellation leaves."""
        self._threads = threads_left()
        self._context = context = Context(
            self.handoff,
            self._reporter,
            agent=self._name,
            journal=self._journal,
            meters=self._meters,
            deliveries=self._deliveries,
            now=self._clock.now,
        )
        try:
            output = await self._agent.run(self.handoff, context)
            if type(self._agent) is not FunctionAgent:  # which has written it as JSON, node by node, already
                output = as_json_value(output)
            return _Ending("succeeded", output=output)
        except NotJsonError as error:
            cause = AttemptError(
                kind=ErrorKind.INVALID_OUTPUT, message=f"the output of agent {self._name} is not JSON: {error}"
            )
            return _Ending("failed", error=cause)
        except Refused as error:
            return _Ending("refused", error=_cause(error.kind, error, error.retryable, error.retry_after))
        except NeedsApproval as error:
            cause = _cause(error.kind, error, False, None)
            return _Ending("failed", error=cause, approvals=error.calls)
        except TaskError as error:
            made = error.made and error.made.encode("utf-8", "replace").decode()  # half a surrogate could not be sent
            return _Ending("failed", made, _cause(error.kind, error, error.retryable, error.retry_after))
        except ModelError as error:
            return _Ending("failed", error=_cause(error.kind, error, error.retryable, error.retry_after))
        except ConfigurationError as error:  # the author's, and the same in every attempt
            return _Ending("failed", error=_cause(error.kind, error, False, None))
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as error:  # a handler's `exit()` ends the attempt, not the worker
            _log.warning("handler_raised", exc_info=error)
            return _Ending("failed", error=_cause(ErrorKind.HANDLER, error, True, None))

    def _result(self, ending: _Ending) -> Result:
        now, context = self._clock.now(), self._context
        return Result(
            workflow_id=self.handoff.workflow_id,
            task_id=self.handoff.task_id,
            attempt=self.handoff.attempt,
            agent=self._name,
            status=ending.status,
            output=ending.output,
            error=ending.error,
            approvals=ending.approvals,
            usage=context.usage if context else Usage(),
            confidence=context.confidence if context else None,
            replan_hint=context.replan_hint if context else None,
            events=context.events if context else (),
            started_at=self._began or now,
            ended_at=now,
        )


def _cause(kind: str, error: BaseException, retryable: bool, retry_after: float | None) -> AttemptError:
    if retry_after is not None:
        retry_after = min(max(retry_after, 0.0), MAX_RETRY_AFTER_S) if math.isfinite(retry_after) else None
    return AttemptError(kind=kind, message=describe_error(error), retryable=retryable, retry_after=retry_after)
