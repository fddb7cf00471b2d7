"""A tool is a function a model may call. What the model gets wrong, and what goes wrong, are results it can read."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, cast, overload

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, create_model
from pydantic.errors import PydanticUserError

from pointsman.authoring.agent import first_paragraph
from pointsman.authoring.attempt_state import AttemptState
from pointsman.authoring.context import Context, state_of
from pointsman.authoring.signatures import JsonType, signature_of
from pointsman.errors import (
    ApprovalRequiredError,
    ConfigurationError,
    ContractError,
    ModelError,
    PointsmanError,
    TaskError,
    describe_error,
)
from pointsman.llm.prompt import not_allowed_message, with_do_without
from pointsman.ports.model import ToolSpec
from pointsman.telemetry import content_capture, get_logger
from pointsman.util.threads import run_in_thread
from pointsman_schemas.events import ApprovalVerdict, ErrorKind, Step, ToolApprovalRequest
from pointsman_schemas.ids import token
from pointsman_schemas.strict_json import compact_json, describe, parse

__all__ = ["Tool", "ToolResult", "ToolSource", "tool"]

P = ParamSpec("P")
R = TypeVar("R")

_FIRST_PAUSE_S = 0.2  # seconds before the first retry of a call, doubled each time: a model and a person are waiting
_MAX_PAUSE_S = 10.0  # seconds: an attempt has a deadline, and a provider that asks for more is better told of later

_MEMORY_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+>")  # as in <object at 0x7f0a5c3d1e10>

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a model is told of its call: `text` as it reads it, `data` the value behind it (None for an error)."""

    text: str
    data: JsonValue = None
    is_error: bool = False


class ToolSource(Protocol):
    """Where tools come from that are not known before they are asked for, such as a server's."""

    async def tools(self) -> Sequence[Tool[..., Any]]:
        """What there is now. Raises `TaskError` when that cannot be found out."""
        ...

    async def close(self) -> None:
        """Give back what it holds. It may be asked again afterwards."""
        ...


class Tool(Generic[P, R]):
    """A function with a name, a description and a JSON Schema of its arguments. Calling it calls the function."""

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
            raise ConfigurationError(f"{owner} has no description; models choose by it: write a docstring")
        numbers = isinstance(timeout, int | float) and isinstance(retries, int)
        if not (numbers and timeout > 0 and retries >= 0):
            raise ConfigurationError(
                f"{owner} has timeout={timeout!r} and retries={retries!r}; expected seconds above 0, and 0 or more"
            )
        if retries and not idempotent:
            raise ConfigurationError(
                f"{owner} is to be retried, but a failed or late try may have done its work; make "
                "it safe to repeat, by Context.idempotency_key, and say idempotent=True"
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
        self._names = {f"p{number}": parameter.name for number, parameter in enumerate(signature.parameters)}
        self._output = JsonType[Any](signature.returns, owner)
        # Parameters may have any name a function's can; a model's fields may not. So the fields are numbered.
        fields: dict[str, Any] = {
            key: (parameter.annotation, Field(... if parameter.required else parameter.default, alias=parameter.name))
            for key, parameter in zip(self._names, signature.parameters, strict=True)
        }
        try:
            self._arguments: type[BaseModel] = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
            parameters: dict[str, JsonValue] = self._arguments.model_json_schema()
        except PydanticUserError as error:
            raise ConfigurationError(
                f"{owner} takes a type that has no JSON form: {error.message.splitlines()[0]}; use "
                "pydantic models, text, numbers, lists or dicts"
            ) from None
        del parameters["title"]  # the tool's name again: every word of a schema costs tokens
        self.spec = ToolSpec(name, description, parameters)
        self.__name__ = name
        self.__doc__ = function.__doc__
        self.__wrapped__ = function

    async def call(self, arguments: str, context: Context, *, call_id: str = "") -> ToolResult:
        """Run the tool on the JSON text a model wrote. Everything but cancellation becomes a result, errors
        too, unless they are not the model's: `ApprovalRequiredError`, and `ConfigurationError`."""
        try:
            value = await self._call_reported(lambda: self._parse(arguments), state_of(context), call_id)
        except (ApprovalRequiredError, ConfigurationError):
            raise  # the one is for the supervisor, the other for the author: neither is for the model
        except (Exception, SystemExit) as error:
            said, kind = describe_error(error), error.kind if isinstance(error, TaskError) else ""
            if kind == ErrorKind.REJECTED:
                said = with_do_without(said)
            return ToolResult(said if kind == ErrorKind.INVALID_INPUT else f"{self.name} failed: {said}", is_error=True)
        return ToolResult(value if isinstance(value, str) else compact_json(value).decode(), value)

    async def run(self, arguments: Mapping[str, object], context: Context) -> JsonValue:
        """Run the tool from code and return its value as strict JSON; what fails, raises. See `Context.call`."""
        return await self._call_reported(lambda: self._check(arguments), state_of(context), "", from_code=True)

    def approval_verdict(
        self, arguments: str, context: Context, ahead: Sequence[tuple[str, Mapping[str, JsonValue]]] = ()
    ) -> ApprovalVerdict | ToolApprovalRequest | None:
        """What a person said to the call, or the call as a person must allow it first; None when nobody need be asked.
        Those `ahead` were allowed and have not begun yet."""
        if self.approval:
            with suppress(Exception):  # when the call is made, the model is told what is wrong with them
                return self._find_verdict(self._parse(arguments), state_of(context), ahead)
        return None

    def count_skipped(self, arguments: str, context: Context) -> None:
        """Count a call that was made before and is not made again: the next equal one keeps its idempotency key, and
        is not allowed by what this one was allowed by."""
        with suppress(Exception):  # as when it was made
            asked = self._parse(arguments)
            self._approved_arguments(asked, state_of(context), self._key(asked, state_of(context)))

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<tool {self.name}>"

    async def _call_reported(
        self, read: Callable[[], BaseModel], state: AttemptState, call_id: str, *, from_code: bool = False
    ) -> JsonValue:
        async with state.report_tool(self.name, call_id=call_id, description=self.spec.description) as call:
            asked = read()
            key = self._key(asked, state)
            kept = self.approval and from_code
            if kept and (made := await state.record.recorded_call(key)) is not None:
                return self._restored_result(made)
            checked = self._approved_arguments(asked, state, key)
            value = await (
                self._recorded_call(checked, asked, state, key)
                if kept
                else self._call_with_retries(checked, state, key)
            )
            if content_capture.capture_enabled():
                call.set_attributes(
                    content_capture.tool_attributes(checked.model_dump_json(fallback=repr, by_alias=True), value)
                )
            return value

    def _find_verdict(
        self, checked: BaseModel, state: AttemptState, ahead: Sequence[tuple[str, Mapping[str, JsonValue]]] = ()
    ) -> ApprovalVerdict | ToolApprovalRequest:
        arguments = self._as_json(checked)
        if (said := state.record.approval_verdict(self.name, arguments, ahead)) is not None:
            return said
        return ToolApprovalRequest(tool=self.name, arguments=arguments, input_schema=dict(self.spec.parameters))

    def _approved_arguments(self, asked: BaseModel, state: AttemptState, key: str) -> BaseModel:
        """The arguments to use, as a person has allowed or changed them."""
        if not self.approval:
            return asked
        said = self._find_verdict(asked, state)
        if isinstance(said, ToolApprovalRequest):
            raise ApprovalRequiredError([said])
        if said.verdict != "approved":
            no = not_allowed_message(self.name, said.reason, in_time=said.verdict == "expired")
            raise TaskError(no, kind=ErrorKind.REJECTED)
        state.record.start_approved_call(key, said.tool, said.arguments)
        return asked if said.input is None else self._check(said.input)

    def _key(self, asked: BaseModel, state: AttemptState) -> str:
        plain = json.dumps(self._as_json(asked), sort_keys=True)
        return state.next_key("tool", self.name, plain)

    async def _recorded_call(self, checked: BaseModel, asked: BaseModel, state: AttemptState, key: str) -> JsonValue:
        """What the allowed call gives that code makes, once it is kept: who begins anew what has made it is given the
        same, for the yes was for one call."""
        call, own = (key, self.name, self._as_json(asked)), state.for_call()
        try:
            value = await self._call_with_retries(checked, own, key)
        except ApprovalRequiredError:
            raise  # it has not come to its end
        except (Exception, SystemExit) as failed:
            await state.record.record_call(*call, None, describe_error(failed), **own.call_fields)
            raise
        return self._restored_result(await state.record.record_call(*call, value, **own.call_fields))

    def _restored_result(self, made: Step) -> JsonValue:
        if made.is_error:
            raise TaskError(f"{self.name} has run, and is not run again: {made.text}")
        return made.data

    async def _call_with_retries(self, checked: BaseModel, state: AttemptState, key: str) -> JsonValue:
        pause = _FIRST_PAUSE_S
        for left in range(self.retries, 0, -1):
            try:
                return await self._call_once(checked, state.for_try(key))
            except Exception as error:
                if not _is_transient(error):
                    raise
                asked = error.retry_after if isinstance(error, TaskError | ModelError) else None
                _log.info("tool_retried", tool=self.name, error=describe_error(error), tries_left=left)
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
                raise  # the tool's own
            raise TaskError(f"no answer within {self.timeout:g} s", kind=ErrorKind.TIMEOUT, retryable=True) from None
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise  # it was asked for: the attempt ends
            raise TaskError("it was cancelled from inside", retryable=True) from None  # its siblings go on
        return self._output.to_json(value)

    async def _prepare(self) -> None:
        """Have what a try needs before its time begins; it has a bound of its own."""

    async def _invoke(self, checked: BaseModel, state: AttemptState) -> object:
        arguments: dict[str, Any] = {name: getattr(checked, key) for key, name in self._names.items()}
        if self._context is not None:
            arguments[self._context] = Context(state)
        call: Callable[..., Any] = self._function
        value = call(**arguments) if self._is_async else await run_in_thread(call, **arguments)
        return await value if inspect.isawaitable(value) else value

    def _parse(self, text: str) -> BaseModel:
        body = text.strip().encode("utf-8", "surrogatepass") or b"{}"  # what providers send for no arguments
        try:
            return parse(self._arguments, body)
        except ContractError as error:
            raise self._bad_arguments(str(error)) from None

    def _check(self, arguments: Mapping[str, object]) -> BaseModel:
        try:
            return self._arguments.model_validate(arguments)
        except ValidationError as error:
            raise self._bad_arguments(describe(error)) from None

    def _as_json(self, checked: BaseModel) -> dict[str, JsonValue]:
        """The arguments as JSON, under their own names: the same call is the same object, whoever makes it, and in
        whatever process.

        Raises:
            ConfigurationError: one is told apart by where it lies in memory alone.
        """
        plain = checked.model_dump(mode="json", by_alias=True, fallback=self._result_text)
        return cast(dict[str, JsonValue], _sort_sets(checked.model_dump(by_alias=True), plain))

    def _result_text(self, value: object) -> str:
        if _MEMORY_ADDRESS.search(words := repr(value)):
            raise ConfigurationError(
                f"the tool {self.name} got {words[:200]} in its arguments, which another process would not know again; "
                f"give {type(value).__name__} a __repr__ that says its value, or take what has a JSON form"
            )
        return words

    def _bad_arguments(self, problem: str) -> TaskError:
        return TaskError(
            f"bad arguments for {self.name}: {problem}; call it as its schema says", kind=ErrorKind.INVALID_INPUT
        )


def _sort_sets(value: object, plain: JsonValue) -> JsonValue:
    """`plain`, which is `value` as JSON, with every set in one order: their own is another in each process."""
    match value, plain:
        case Mapping(), dict() if len(value) == len(plain):
            pairs = zip(value.values(), plain.items(), strict=True)
            return {key: _sort_sets(inner, written) for inner, (key, written) in pairs}
        case list() | tuple() | deque() | set() | frozenset(), list() if len(value) == len(plain):
            written = [_sort_sets(*pair) for pair in zip(value, plain, strict=True)]
            return sorted(written, key=compact_json) if isinstance(value, set | frozenset) else written
        case _:
            return plain


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

    The name is the function's, the description its docstring's first paragraph, the schema its annotations'
    (`Annotated[str, Field(description="...")]` describes a parameter). A parameter annotated `Context` is not the
    model's to fill. `timeout` is in seconds and bounds each try; `retries` counts tries after the first of one call,
    and needs `idempotent`: running it twice under one `Context.idempotency_key` does the same as running it once.
    With `approval`, a person must allow each call: the attempt ends, and the task goes on in another one, with the
    answer. A call that was rejected is an error the model reads.

    Raises:
        ConfigurationError: the definition does not fit; the message says what to change.
    """
    if isinstance(function, str):
        raise ConfigurationError(f"@tool({function!r}) takes its name by keyword; write @tool(name={function!r})")
    namespace = sys._getframe(1).f_locals

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
