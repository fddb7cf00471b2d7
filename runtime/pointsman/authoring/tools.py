"""Make tools for models from functions. If the arguments are wrong or the tool fails, the model reads the error."""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Generic, ParamSpec, Protocol, TypeVar, overload

from pydantic import BaseModel, JsonValue

from pointsman.authoring.agent import first_paragraph
from pointsman.authoring.attempt_state import AttemptState
from pointsman.authoring.context import Context, state_of
from pointsman.authoring.interceptor import ToolInvocation, intercept_tool
from pointsman.authoring.json_types import OutputType
from pointsman.authoring.keyword_check import check_keywords
from pointsman.authoring.signatures import signature_of
from pointsman.authoring.tool_arguments import ToolArguments
from pointsman.errors import (
    AnswerRequiredError,
    ConfigurationError,
    ModelError,
    PointsmanError,
    TaskError,
    describe_error,
)
from pointsman.llm.prompt import not_allowed_message, with_do_without
from pointsman.ports.model import ToolSpec
from pointsman.telemetry import content_capture, get_logger
from pointsman.util.threads import run_in_thread
from pointsman_schemas.events import Answer, ErrorKind, QuestionRequest, Step
from pointsman_schemas.ids import token
from pointsman_schemas.strict_json import as_json_value, compact_json

__all__ = ["Tool", "ToolResult", "ToolSource", "tool"]

P = ParamSpec("P")
R = TypeVar("R")

_FIRST_PAUSE_S = 0.2  # doubles with each retry; starts short, because the attempt waits during the pause
_MAX_PAUSE_S = 10.0  # longest pause; a longer one could use up the time of the attempt

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ToolResult:
    """Result of a tool call for a model.

    Attributes:
        text: Text that the model reads.
        data: Value of the tool as JSON; None for an error.
        is_error: True if the call failed.
    """

    text: str
    data: JsonValue = None
    is_error: bool = False


class ToolSource(Protocol):
    """Source that lists its tools at run time, such as a server."""

    async def tools(self) -> Sequence[Tool[..., Any]]:
        """Return the tools that are available now.

        Returns:
            The tools.

        Raises:
            TaskError: The tools cannot be listed.
        """
        ...

    async def close(self) -> None:
        """Release connections. The source may be used again afterwards."""
        ...


class Tool(Generic[P, R]):
    """Function with a name, a description and a JSON Schema of its arguments. Code can call the tool like the function.

    Args:
        function: Async or plain function.
        name: Name of the tool.
        description: Purpose of the tool. Models choose tools by this text.
        timeout: Limit of each try, in seconds.
        retries: Largest number of tries after the first try.
        idempotent: True if the tool may run twice under one `Context.idempotency_key`.
        approval: True if a person must allow each call.
        namespace: Local names of the scope that defines the function, for its annotations.

    Raises:
        ConfigurationError: The definition is not valid. The message contains the necessary change.
    """

    _arguments_type: ClassVar[type[ToolArguments]] = ToolArguments

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str,
        description: str,
        timeout: float,
        retries: int,
        idempotent: bool,
        approval: bool = False,
        namespace: Mapping[str, Any],
    ) -> None:
        token(name, "tool name")
        owner = f"tool {name}"
        if not description:
            raise ConfigurationError(f"{owner} has no description for models; write a docstring")
        numbers = isinstance(timeout, int | float) and isinstance(retries, int)
        if not (numbers and timeout > 0 and retries >= 0):
            raise ConfigurationError(
                f"{owner} has timeout={timeout!r} and retries={retries!r}; expected seconds above 0 for the "
                "timeout, and 0 or more retries"
            )
        if retries and not idempotent:
            raise ConfigurationError(
                f"{owner} has retries={retries} and is not idempotent, but a failed or late try may have done its "
                "work; make it safe to repeat with Context.idempotency_key, and set idempotent=True"
            )
        signature = signature_of(function, owner, namespace)
        self.name = name
        self.timeout = timeout
        self.retries = retries
        self.idempotent = idempotent
        self.approval = approval
        self._function = function
        self._is_async = signature.is_async
        self._context = signature.context
        self._output = OutputType(signature.returns, owner)
        self._arguments = self._arguments_type(name, signature.parameters)
        self.spec = ToolSpec(name, description, self._arguments.schema)
        self.__name__ = name
        self.__doc__ = function.__doc__
        self.__wrapped__ = function

    async def call(self, arguments: str, context: Context, *, call_id: str = "") -> ToolResult:
        """Run the tool on the JSON text that a model wrote. A failure becomes a result that the model can read.

        The result contains the text of a `TaskError`, because a `TaskError` is meant for the model. For any other
        exception, the model gets only the type, and the stored report of the call contains the text.

        Args:
            arguments: JSON text of the arguments.
            context: Context of the attempt.
            call_id: Id that the model gave the call.

        Returns:
            The result for the model.

        Raises:
            AnswerRequiredError: A person must allow a call first.
            ConfigurationError: The author of the tool has to change something.
            CancelledError: The call was cancelled.
        """
        try:
            read = partial(self._arguments.parse, arguments)
            value = await self._call_reported(read, state_of(context), call_id)
        except (AnswerRequiredError, ConfigurationError, asyncio.CancelledError):
            raise  # not a result for the model, because the supervisor or the author must react
        except BaseException as error:  # even a KeyboardInterrupt of the tool, which would end the event loop
            text, kind = _public_text(error), error.kind if isinstance(error, TaskError) else ""
            if kind == ErrorKind.REJECTED:
                text = with_do_without(text)
            return ToolResult(text if kind == ErrorKind.INVALID_INPUT else f"{self.name} failed: {text}", is_error=True)
        return ToolResult(value if isinstance(value, str) else compact_json(value).decode(), value)

    async def run(self, arguments: Mapping[str, object], context: Context) -> JsonValue:
        """Run the tool from code. See `Context.call`.

        Args:
            arguments: Arguments by name.
            context: Context of the caller.

        Returns:
            The value of the tool as strict JSON.
        """
        return await self._call_reported(
            lambda: self._arguments.check(arguments), state_of(context), "", from_code=True
        )

    def approval_verdict(
        self, arguments: str, context: Context, ahead: Sequence[tuple[str, Mapping[str, JsonValue]]] = ()
    ) -> Answer | QuestionRequest | None:
        """Return a person's verdict on a call, or the request for the missing verdict.

        Args:
            arguments: JSON text of the arguments.
            context: Context of the attempt.
            ahead: Approved calls of the same turn that will be started before this call.

        Returns:
            The verdict or the request; None if the call needs no approval.
        """
        if self.approval:
            with suppress(Exception):  # bad arguments need no verdict: `call` reports them to the model
                return self._find_verdict(self._arguments.parse(arguments), state_of(context), ahead)
        return None

    def count_skipped(self, arguments: str, context: Context) -> None:
        """Count a call whose result is restored. The next equal call then gets its own key and its own verdict.

        Args:
            arguments: JSON text of the arguments.
            context: Context of the attempt.
        """
        with suppress(Exception):  # bad arguments are not counted: `call` has reported them to the model
            asked = self._arguments.parse(arguments)
            self._approved_arguments(asked, state_of(context), self._key(asked, state_of(context)))

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<tool {self.name}>"

    async def _call_reported(
        self, read: Callable[[], BaseModel], state: AttemptState, call_id: str, *, from_code: bool = False
    ) -> JsonValue:
        async with state.report_tool(self.name, call_id=call_id, description=self.spec.description) as call:
            try:
                asked = read()
                key = self._key(asked, state)
                recorded = self.approval and from_code
                if recorded and (step := await state.record.recorded_call(key)) is not None:
                    return self._restored_result(step)
                checked = self._approved_arguments(asked, state, key)
                if recorded:
                    value = await self._recorded_call(checked, asked, state, key)
                else:
                    value = await self._intercepted(checked, state, key, call_id)
            except (TaskError, ConfigurationError, asyncio.CancelledError, GeneratorExit):
                raise
            except BaseException as error:  # logged, because the model does not get the text of the exception
                _log.warning("tool_failed", tool=self.name, agent=state.agent, exc_info=error)
                raise
            if content_capture.capture_enabled():
                call.set_attributes(
                    content_capture.tool_attributes(checked.model_dump_json(fallback=repr, by_alias=True), value)
                )
            return value

    def _find_verdict(
        self, checked: BaseModel, state: AttemptState, ahead: Sequence[tuple[str, Mapping[str, JsonValue]]] = ()
    ) -> Answer | QuestionRequest:
        arguments = self._arguments.to_json(checked)
        if (verdict := state.record.approval_verdict(self.name, arguments, ahead)) is not None:
            return verdict
        return QuestionRequest(tool=self.name, arguments=arguments, input_schema=dict(self.spec.parameters))

    def _approved_arguments(self, asked: BaseModel, state: AttemptState, key: str) -> BaseModel:
        """Return the arguments that a person allowed, with the person's changes."""
        if not self.approval:
            return asked
        verdict = self._find_verdict(asked, state)
        if isinstance(verdict, QuestionRequest):
            raise AnswerRequiredError([verdict])
        if verdict.verdict != "approved":
            reason = not_allowed_message(self.name, verdict.reason, in_time=verdict.verdict == "expired")
            raise TaskError(reason, kind=ErrorKind.REJECTED)
        state.record.start_approved_call(key, verdict.tool, verdict.arguments)
        return self._arguments.check(verdict.input) if isinstance(verdict.input, dict) else asked

    def _key(self, asked: BaseModel, state: AttemptState) -> str:
        plain = json.dumps(self._arguments.to_json(asked), sort_keys=True)
        return state.next_key("tool", self.name, plain)

    async def _recorded_call(self, checked: BaseModel, asked: BaseModel, state: AttemptState, key: str) -> JsonValue:
        """Run an approved call from code, record its result, and return the recorded result.

        The approval is for one run. So when the attempt starts again, the call returns the recorded result.

        Returns:
            The value of the tool.

        Raises:
            AnswerRequiredError: The tool asked a person. The call has not ended, so nothing is recorded.
            CancelledError: The call was cancelled.
            GeneratorExit: The call was closed.
            BaseException: Any other exception of the tool, which is recorded before the raise.
        """
        recorded, call = (key, self.name, self._arguments.to_json(asked)), state.for_call()
        try:
            value = await self._intercepted(checked, call, key, "")
        except AnswerRequiredError:
            raise  # nothing is recorded, because the call has not ended
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as error:
            await state.record.record_call(*recorded, None, _public_text(error), **call.call_fields)
            raise
        return self._restored_result(await state.record.record_call(*recorded, value, **call.call_fields))

    def _restored_result(self, step: Step) -> JsonValue:
        if step.is_error:
            raise TaskError(f"{self.name} has run, and is not run again: {step.text}")
        return step.data

    async def _intercepted(self, checked: BaseModel, state: AttemptState, key: str, call_id: str) -> JsonValue:
        if not state.interceptors:
            return await self._call_with_retries(checked, state, key)
        given = ToolInvocation(self.name, self._arguments.to_json(checked), Context(state), call_id)

        async def call(invocation: ToolInvocation) -> JsonValue:
            arguments = (
                checked if invocation.arguments is given.arguments else self._arguments.check(invocation.arguments)
            )
            return await self._call_with_retries(arguments, state, key)

        return as_json_value(await intercept_tool(state.interceptors, given, call), repair_text=True)

    async def _call_with_retries(self, checked: BaseModel, state: AttemptState, key: str) -> JsonValue:
        pause = _FIRST_PAUSE_S
        for left in range(self.retries, 0, -1):
            try:
                return await self._call_once(checked, state.for_try(key))
            except Exception as error:
                if not _is_transient(error):
                    raise
                asked = error.retry_after if isinstance(error, TaskError | ModelError) else None
                _log.info("tool_retried", tool=self.name, error=error, tries_left=left)
            await asyncio.sleep(min(pause if asked is None else asked, _MAX_PAUSE_S))
            pause *= 2
        return await self._call_once(checked, state.for_try(key))

    async def _call_once(self, checked: BaseModel, state: AttemptState) -> JsonValue:
        await self._prepare()
        limit = asyncio.timeout(self.timeout)
        try:
            async with limit:
                value = await self._invoke(checked, state)
        except TimeoutError:
            if not limit.expired():
                raise  # the tool itself raised this error within its time
            raise TaskError(f"no answer within {self.timeout:g} s", kind=ErrorKind.TIMEOUT, retryable=True) from None
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise  # the attempt ends
            # The tool cancelled itself, so only this call fails. Other calls of the attempt continue.
            raise TaskError("the tool cancelled itself", retryable=True) from None
        return self._output.to_json(value)

    async def _prepare(self) -> None:
        """Prepare a try before its timeout starts. A subclass that overrides this method limits the time itself."""

    async def _invoke(self, checked: BaseModel, state: AttemptState) -> object:
        arguments = self._arguments.by_name(checked)
        if self._context is not None:
            arguments[self._context] = Context(state)
        call: Callable[..., Any] = self._function
        value = call(**arguments) if self._is_async else await run_in_thread(call, **arguments)
        return await value if inspect.isawaitable(value) else value


def _public_text(error: BaseException) -> str:
    """Return the text of a `TaskError`, or only the type of any other exception.

    Models and callers do not get the text of other exceptions, because the text may quote addresses and secrets.
    """
    if isinstance(error, TaskError):
        return describe_error(error)
    return f"{type(error).__name__}; `pointsman trace` has the reason"


def _is_transient(error: Exception) -> bool:
    if isinstance(error, TaskError | ModelError):
        return error.retryable
    return not isinstance(error, PointsmanError)


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float = 60.0,
    retries: int = 0,
    idempotent: bool = False,
    approval: bool = False,
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
@check_keywords
def tool(
    function: Callable[P, R] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float = 60.0,
    retries: int = 0,
    idempotent: bool = False,
    approval: bool = False,
) -> Tool[P, R] | Callable[[Callable[P, R]], Tool[P, R]]:
    """Make a tool of an async or plain function: `@tool`, or `@tool(timeout=5)`.

    The schema comes from the annotations; `Annotated[str, Field(description="...")]` describes a parameter. A model
    does not fill a parameter annotated with `Context`. Raise a `TaskError` for a failure whose text the model may read.
    For any other exception, the model gets only the type, and `pointsman trace` has the text.

    Args:
        function: Function to decorate, in the form `@tool` without brackets.
        name: Name of the tool; by default the name of the function.
        description: Purpose of the tool; by default the first paragraph of the docstring.
        timeout: Limit of each try, in seconds.
        retries: Tries after the first try of a call. Retries need `idempotent=True`.
        idempotent: True if two runs under one `Context.idempotency_key` have the same effect as one run.
        approval: True if a person must allow each call. The attempt ends, and the task continues in a new attempt with
            the person's answer. A rejected call is an error that the model reads.

    Returns:
        The tool, or a decorator that makes one.

    Raises:
        ConfigurationError: The definition is not valid. The message contains the necessary change.
    """
    if isinstance(function, str):
        raise ConfigurationError(f"@tool({function!r}) takes its name by keyword; write @tool(name={function!r})")
    namespace = sys._getframe(2).f_locals  # frame 2 is the caller; frame 1 is the wrapper `check_keywords`

    def make(function: Callable[P, R]) -> Tool[P, R]:
        return Tool(
            function,
            name=name or function.__name__,
            description=description or first_paragraph(function),
            timeout=timeout,
            retries=retries,
            idempotent=idempotent,
            approval=approval,
            namespace=namespace,
        )

    return make if function is None else make(function)
