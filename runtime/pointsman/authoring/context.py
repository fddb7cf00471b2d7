"""Context of an attempt, which agents and tools get: the task, the dependencies, and methods to report."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar, overload

from pydantic import JsonValue

from pointsman.authoring.attempt_state import AttemptState, without_surrogates
from pointsman.authoring.files import Files
from pointsman.authoring.ports import RecordingReporter, ReportedCall, Reporter, RunnableTool
from pointsman.authoring.questions import NO_DEFAULT, ask
from pointsman.errors import ConfigurationError, InvalidTokenError
from pointsman.llm.prices import PRICES, with_named_cost
from pointsman.telemetry import get_logger
from pointsman.util.process_groups import CompletedProcess, run_process
from pointsman_schemas.events import Delta, EmittedEvent, Handoff, History, TaskReport, Usage, UserMessage
from pointsman_schemas.ids import attempt_token, token
from pointsman_schemas.strict_json import as_json_value
from pointsman_schemas.subjects import Subjects

__all__ = ["Context", "state_of"]

_log = get_logger(__name__)

T = TypeVar("T")

_REPORT_KINDS = frozenset({"progress", "tool", "chat"})


class Context:
    """Context of one attempt, which the agent gets: the task, the dependencies, and methods to report.

    A function gets a context if a parameter has the annotation `Context`. A test makes a context with
    `Context.for_test()`. `progress`, `stream_text`, `set_confidence`, `replan` and `record_usage` never wait, so async
    and plain functions call them in the same way. `emit`, `call`, `ask`, `messages` and `run_process` are coroutines.
    An async function awaits the coroutine, and a plain function passes the coroutine to `run_sync`.

    Args:
        state: State of the attempt. The runtime makes the state.
    """

    __slots__ = ("_state",)

    def __init__(self, state: AttemptState) -> None:
        self._state = state

    @classmethod
    def for_test(
        cls,
        input: object = None,
        *,
        agent: str = "agent",
        intent: str = "test",
        results: Iterable[TaskReport] = (),
        reporter: Reporter | None = None,
        deps: Iterable[object] = (),
        interceptors: Iterable[Any] = (),
        idempotency_key: str = "wf_test-T1",
        messages: Sequence[str] = (),
    ) -> Context:
        """Return a context for a test. The test needs neither a broker nor an event loop.

        Args:
            input: Input of the task: a value that JSON can represent, or a pydantic model.
            agent: Name of the agent.
            intent: Description of the task in words.
            results: Results of the tasks that this task depends on.
            reporter: Receiver of reports. Pass a `RecordingReporter` to check them. By default, reports are dropped.
            deps: Dependencies for `dep`. They are searched before the agent's own dependencies.
            interceptors: Interceptors of tool calls and model calls, outermost first.
            idempotency_key: Key of the task.
            messages: Messages to the workflow, in order, as `messages` returns them.

        Returns:
            The context.

        Raises:
            NotJsonError: JSON cannot represent `input`.
        """
        handoff = Handoff(
            workflow_id="wf_test",
            task_id="T1",
            attempt=1,
            from_agent="test",
            to_agent=agent,
            intent=intent,
            input=as_json_value(input, "input"),
            context=tuple(results),
            return_to=Subjects().result("test", agent, "wf_test", "T1", 1, attempt_token("test", "T1", 1)),
            deadline=datetime.now(UTC) + timedelta(hours=1),
            idempotency_key=idempotency_key,
            messages=tuple(
                UserMessage(number=number, text=text, by="test", at=datetime.now(UTC))
                for number, text in enumerate(messages, 1)
            ),
        )
        receiver = RecordingReporter() if reporter is None else reporter
        return cls(AttemptState(handoff, receiver, interceptors=interceptors).with_deps(deps))

    # The task

    @property
    def handoff(self) -> Handoff:
        """The whole handoff, as the supervisor sent it."""
        return self._state.handoff

    @property
    def agent(self) -> str:
        """Name of the agent."""
        return self._state.agent

    @property
    def workflow_id(self) -> str:
        """Id of the workflow."""
        return self.handoff.workflow_id

    @property
    def task_id(self) -> str:
        """Id of the task in its plan, unique within the workflow."""
        return self.handoff.task_id

    @property
    def attempt(self) -> int:
        """Number of this attempt at the task, from 1."""
        return self.handoff.attempt

    @property
    def intent(self) -> str:
        """Description of the task in words."""
        return self.handoff.intent

    @property
    def feedback(self) -> str:
        """Reason why the output of the previous attempt was rejected; empty at the first attempt."""
        return self.handoff.feedback

    @property
    def event(self) -> str:
        """Name of the domain event that this task reacts to in a choreography. The event's data is the input."""
        return self.handoff.event

    @property
    def deadline(self) -> datetime:
        """Time (UTC) after which the result is ignored. The card's `timeout` may end the attempt earlier."""
        return self.handoff.deadline

    @property
    def results(self) -> Mapping[str, TaskReport]:
        """Results of the tasks that this task depends on, by task id."""
        return _Results({report.task_id: report for report in self.handoff.context})

    @property
    def files(self) -> Files:
        """Files of the request and of the tasks that this task depends on, by name. `add` adds a file to the result."""
        return self._state.files

    @property
    def history(self) -> History | None:
        """Earlier turns of the thread, newest last, with a summary of the oldest turns; None outside of a thread."""
        return self.handoff.history

    @property
    def idempotency_key(self) -> str:
        """Key of the task; in a tool, key of the tool call.

        The key stays the same in every attempt at the task, and in every try of the tool call.

        Send the key with each side effect. Then the receiver of the side effect can drop duplicates.
        """
        return self._state.idempotency_key

    @property
    def cancelled(self) -> bool:
        """True when the result is not needed any more. Read this in blocking functions, which cannot be interrupted."""
        return self._state.handle.cancelled

    def now(self) -> datetime:
        """Return the broker's time, not the time of this machine. Deadlines follow the broker's time.

        Returns:
            The time, in UTC.
        """
        return self._state.now()

    def dep(self, kind: type[T]) -> T:
        """Return the dependency of type `kind`, such as a database or a client.

        The dependencies of a test come first, then the agent's `deps`, then the values of the worker's lifespans.

        Args:
            kind: Type of the dependency. An instance of a subclass also matches.

        Returns:
            The first dependency that is a `kind`.

        Raises:
            ConfigurationError: No dependency is a `kind`.
        """
        known = self._state.all_deps
        found = next((each for each in known if isinstance(each, kind)), None)
        if found is None:
            names = ", ".join(type(each).__name__ for each in known) or "none"
            raise ConfigurationError(
                f"agent {self.agent} has no dependency of type {kind.__name__}; the dependencies are: {names}. Pass "
                "it to the agent in deps=[...], or yield it from a @lifespan in a module that the worker runs"
            )
        return found

    # Values that go with the result

    @property
    def usage(self) -> Usage:
        """Usage of the model calls of this attempt so far."""
        return self._state.attempt_usage.usage

    @property
    def events(self) -> tuple[EmittedEvent, ...]:
        """Domain events that this attempt has emitted so far."""
        return self._state.record.events

    @property
    def confidence(self) -> float | None:
        """Value of the last `set_confidence`, from 0 to 1."""
        return self._state.attempt_usage.confidence

    @property
    def replan_hint(self) -> str | None:
        """Reason given to the last `replan`."""
        return self._state.attempt_usage.replan_hint

    def record_usage(self, usage: Usage, *, model: str = "") -> None:
        """Add `usage` to the usage of this attempt. The result contains the sum, even if the attempt fails.

        Args:
            usage: Calls, tokens and cost of a model call that was not made through an `LLMAgent`.
            model: The model, such as `openai:gpt-4.1`. If `usage` has no cost, the published price of the model gives
                the cost. The first time that a process needs such a price, this method loads the price table, which
                takes half a second.
        """
        if model and not usage.cost:
            usage = with_named_cost(model, usage)
            if not usage.cost and usage.tokens and model.rpartition(":")[2] not in PRICES and model not in PRICES:
                _log.warning("model_price_unknown", model=model, agent=self._state.agent)
        self._state.usage.add(usage)

    def set_confidence(self, confidence: float) -> None:
        """Report the confidence of the output.

        Args:
            confidence: Number from 0 to 1.

        Raises:
            ValueError: `confidence` is outside of 0 to 1.
        """
        if not 0 <= confidence <= 1:  # NaN is also outside
            raise ValueError(f"confidence is {confidence!r}; expected a number from 0 to 1")
        self._state.usage.set_outcome_hints(confidence=float(confidence))

    def replan(self, reason: str) -> None:
        """Request a new plan. The supervisor asks the planner after the result of this attempt has arrived.

        Args:
            reason: Reason why the plan is not sufficient, for the planner.
        """
        self._state.usage.set_outcome_hints(replan_hint=without_surrogates(reason))

    # Reports

    def progress(self, message: str, **data: object) -> None:
        """Report the current work. The call never waits. Under load, a report may be dropped.

        The report is stored on the bus, outside of the workflow's log. `pointsman watch` shows the report.

        Args:
            message: Text for people.
            **data: Values that strict JSON can represent.

        Raises:
            NotJsonError: JSON cannot represent a value of `data`.
        """
        self._state.report_progress(message, data)

    def stream_text(self, text: str) -> None:
        """Send a piece of text to the clients that watch now. The call never waits, and the text is not stored.

        Args:
            text: Next piece of a text that is being written.
        """
        self._state.reporter.stream_text(
            Delta(
                workflow_id=self.workflow_id,
                task_id=self.task_id,
                attempt=self.attempt,
                agent=self.agent,
                role=self.handoff.role,
                call=self._state.handle.text_id,
                text=without_surrogates(text),
            )
        )

    async def emit(self, name: str, data: object = None) -> None:
        """Publish a domain event of this workflow, and return when the event is stored.

        In a team with `Choreography`, each agent that reacts to the event gets a task when this attempt has succeeded.
        If an earlier attempt emitted the event, the event is not stored again while the broker remembers its id.

        Args:
            name: Name of the event, a token of a subject.
            data: Value that strict JSON can represent.

        Raises:
            InvalidTokenError: `name` cannot be a token of a subject, or is `progress`, `tool` or `chat`.
            NotJsonError: JSON cannot represent `data`.
            OversizeEventError: The event is larger than the broker accepts.
        """
        if token(name, "event name") in _REPORT_KINDS:
            raise InvalidTokenError(f"the event name is {name!r}, which names a kind of report; choose another name")
        state = self._state
        event = state.new_report(name, name=name, at=state.now(), data=data)
        key = state.next_key("event", name)
        await state.reporter.emit(event, key)
        await state.record.record_event(key, EmittedEvent(name=name, data=event.data), lasting=state.in_tool)

    def tool(self, name: str, *, call_id: str = "", description: str = "") -> AbstractAsyncContextManager[ReportedCall]:
        """Report the body of an `async with` block as one run of a tool, even if the body raises an error.

        The run gets a span and a stored report. Use `tool` for a function that is not a `Tool`. A `Tool` that runs by
        `call` is reported without such a block.

        Args:
            name: Name of the tool.
            call_id: Id that the model gave the call.
            description: Description of the tool.

        Returns:
            A context manager of the call, for errors, usage and span attributes.
        """
        return self._state.report_tool(name, call_id=call_id, description=description)

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
        """Report the body of an `async with` block as one model call, even if the body raises an error.

        The model call gets a span and a stored report. Use `chat` for a call with a provider's SDK. An `LLMAgent`
        reports its model calls without such a block.

        Args:
            provider: Provider of the model, such as `openai`.
            model: Name of the model.
            max_tokens: Limit of the answer, in tokens.
            temperature: Sampling temperature.
            structured: True if the answer must fit a JSON Schema.
            attempt: Number of the try, from 1.

        Returns:
            A context manager of the call, for errors, usage and span attributes.
        """
        return self._state.report_chat(
            provider, model, max_tokens=max_tokens, temperature=temperature, structured=structured, attempt=attempt
        )

    # Questions

    @overload
    async def ask(
        self,
        question: str,
        /,
        *,
        choices: Sequence[str] | None = None,
        timeout: float | None = None,
        default: str | None = ...,
    ) -> str: ...
    @overload
    async def ask(
        self,
        question: str,
        /,
        *,
        output: type[T],
        choices: Sequence[T] | None = None,
        timeout: float | None = None,
        default: T | None = ...,
    ) -> T: ...
    async def ask(
        self,
        question: str,
        /,
        *,
        output: Any = str,
        choices: Sequence[Any] | None = None,
        timeout: float | None = None,
        default: Any = NO_DEFAULT,
    ) -> Any:
        """Ask a person, and return the answer.

        The attempt ends while the question is open, so no process waits, and the workflow survives restarts. When the
        answer arrives, the supervisor hands out the task again. The agent starts again, and the same question returns
        the answer at once. An `LLMAgent` continues from its recorded steps. Concurrent questions, as in
        `asyncio.gather`, are asked together.

        A repeated question is recognised by its text, its type and its choices. So give equal values each time.

        Args:
            question: Question, at most 4,000 characters.
            output: Type of the answer: text, a number, a pydantic model. Default: `str`.
            choices: Possible answers, at most 100; None for any answer of the type.
            timeout: Seconds to wait for the answer. The team's `Limits(answer_timeout=...)` is the default and the
                maximum.
            default: Answer if no answer arrives in time. Without a default, an expired question raises an error.

        Returns:
            The answer, checked against the type.

        Raises:
            AnswerRequiredError: The question has no answer yet. Do not catch the error, because it ends the attempt.
            ConfigurationError: The question is not valid.
            UnansweredError: A person declined to answer, or the question expired without a default.
        """
        return ask(self._state, question, output, choices, timeout, default)

    # Messages

    async def messages(self) -> tuple[UserMessage, ...]:
        """Return all messages that the workflow has received until now, including those from before this attempt.

        `pointsman tell` and `Client.tell` send messages. Call this method between the steps of the work. New messages
        have higher numbers than the messages of the previous call. Each call is recorded. If the attempt continues in
        another process or after a question, the calls are counted from 1 again, and each call returns what the recorded
        call with the same number returned.

        Returns:
            The messages, in order.

        Raises:
            TaskError: The attempt has called this method 1,000 times; kind `limit`.
        """
        return await self._state.messages.read(self._state.next_key("messages"))

    # Tools and processes

    async def call(self, tool: RunnableTool, /, **arguments: object) -> JsonValue:
        """Run a tool from code. Checks, timeout, retries and reports are the same as when a model calls the tool.

        Args:
            tool: Function decorated with `@tool`.
            **arguments: Arguments by name, without the tool's `Context` parameter.

        Returns:
            The value of the tool as JSON.

        Raises:
            TaskError: The arguments (kind `invalid_input`) or the tool's value (`invalid_output`) are not valid.
            Exception: The exception of the tool's last try.
        """
        return await tool.run(arguments, self)

    async def run_process(
        self,
        *command: str,
        input: bytes = b"",
        cwd: Path | str | None = None,
        env: Mapping[str, str] | None = None,
        secrets: Iterable[str] = (),
    ) -> CompletedProcess:
        """Run a command and return its exit code and output.

        When the attempt is cancelled or times out, or when the worker stops, the process and all its children get
        SIGTERM, and SIGKILL after 0.75 seconds.

        Args:
            *command: Program and arguments.
            input: Bytes for the standard input.
            cwd: Working directory. Default: the worker's working directory.
            env: Environment. Default: the worker's environment without model keys, `POINTSMAN_*` and the collector's
                headers.
            secrets: Names of variables that the default environment excludes and that the command needs. They are used
                only if `env` is None. Default: none.

        Returns:
            Exit code, standard output and standard error.

        Raises:
            OSError: The command cannot be started.
        """
        running = asyncio.ensure_future(run_process(*command, input=input, cwd=cwd, env=env, secrets=secrets))
        processes = self._state.handle.processes
        processes.add(running)
        try:
            return await running
        finally:
            processes.discard(running)

    def run_sync(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine, such as `context.emit("checked")`, and wait for its result. Call this in a plain function.

        The coroutine runs on the event loop of the agents. If the context was made outside of an event loop, as in a
        plain test, the coroutine runs on a new event loop.

        Args:
            work: Coroutine to run.

        Returns:
            The result of the coroutine.

        Raises:
            RuntimeError: The caller runs on an event loop, and the wait would block that loop.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            if (loop := self._state.loop) is None:
                return asyncio.run(work)
            return asyncio.run_coroutine_threadsafe(work, loop).result()
        work.close()
        raise RuntimeError(
            "run_sync was called in an async function and would block the event loop; write `await` instead"
        )


def state_of(context: Context) -> AttemptState:
    """Return the state behind `context`, for the runtime.

    Args:
        context: Context of an agent or a tool.

    Returns:
        The state of the attempt.
    """
    return context._state


class _Results(dict[str, TaskReport]):
    """Results by task id. For a missing id, a `KeyError` lists the existing ids."""

    def __missing__(self, task_id: str) -> TaskReport:
        known = ", ".join(self) or "none, because the task depends on no other task"
        raise KeyError(f"there is no result of {task_id!r}; there are results of: {known}")
