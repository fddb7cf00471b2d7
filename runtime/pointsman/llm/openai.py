"""Call OpenAI's chat completions API at any server that has the API. Each call gets one reply, without a retry."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import JsonValue

from pointsman.llm.attachments import chat_part
from pointsman.llm.capabilities import Capabilities
from pointsman.llm.foreign_json import Field, sanitized, whole_number
from pointsman.llm.json_extraction import parse_strict_json
from pointsman.llm.json_schemas import object_schema, tool_parameters
from pointsman.llm.provider_model import Dialect, ProviderModel, open_response
from pointsman.llm.replies import (
    ParsedReply,
    as_arguments,
    content_text,
    extras,
    merge_usage,
    refusal_text,
    repeated_name,
    repeated_text,
    schema_instructions,
)
from pointsman.ports.model import ModelRequest, ToolCall, Turn

__all__ = ["CHAT_COMPLETIONS", "OpenAIModel", "OpenAIServer"]

_MESSAGE_FIELDS: Final = ("role", "content", "tool_calls", "function_call", "refusal", "annotations", "audio", "images")
"""The fields of a message that this module reads or ignores. Other fields are sent back to the server unchanged."""
_CALL_FIELDS: Final = ("id", "type", "index", "function", "name", "arguments", "custom")
_ONLY_WITH_CALLS: Final = ("reasoning_content", "reasoning")
"""Fields with the model's thinking. They are sent back only in turns with tool calls, because some servers require the
fields in these turns, and refuse the fields in other turns."""


class OpenAIServer(ProviderModel):
    """A model of a server with one of OpenAI's APIs.

    The server is `base_url`, `OPENAI_BASE_URL` or OpenAI's own server. The key is `api_key` or `OPENAI_API_KEY`. At a
    base URL, no key is needed, because some servers need none. Such a server then gets the text `none` as the key.
    """

    provider = "openai"
    needs_key = False

    def _new_client(self, sdk: Any) -> Any:
        return sdk.AsyncOpenAI(
            api_key=self._key or "none",
            base_url=self._base_url,
            max_retries=0,
            timeout=self._timeout,
            http_client=sdk.DefaultAsyncHttpxClient(timeout=self._timeout),
        )


# Requests


def _write(request: ModelRequest, model: str, known: Capabilities, origin: str) -> dict[str, Any]:
    schema = object_schema(request.output_schema) if request.output_schema is not None else None
    mode = known.output_mode(request.output_name)
    instructions = request.instructions
    if schema is not None and mode != "json_schema":
        instructions = schema_instructions(instructions, schema)
    body: dict[str, Any] = {
        "model": model,
        "messages": _messages(instructions, request.turns, known, origin),
        "max_completion_tokens": known.answer_tokens(request),
    }
    if request.temperature is not None:
        body["temperature"] = request.temperature
    if request.tools:
        body["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool_parameters(tool.parameters),
                },
            }
            for tool in request.tools
        ]
    if schema is not None and mode == "json_schema":
        # `strict` is False, because strict schemas cannot have values of any form, which plans need. The caller checks
        # the answer.
        body["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": request.output_name, "schema": schema, "strict": False},
        }
    elif schema is not None and mode == "json_object":
        body["response_format"] = {"type": "json_object"}
    if request.on_text is not None:
        body["stream_options"] = {"include_usage": True}
    return body


def _messages(instructions: str, turns: tuple[Turn, ...], known: Capabilities, origin: str) -> list[dict[str, Any]]:
    messages = [_message(turn, known, origin) for turn in turns]
    if "system" not in known.left_out:
        return [{"role": "system", "content": instructions}, *messages]
    first, *rest = messages
    if isinstance(parts := first["content"], list):
        return [{**first, "content": [{"type": "text", "text": instructions}, *parts]}, *rest]
    return [{**first, "content": f"{instructions}\n\n{first['content']}"}, *rest]


def _message(turn: Turn, known: Capabilities, origin: str) -> dict[str, Any]:
    if turn.role == "tool":
        return {"role": "tool", "tool_call_id": turn.call_id, "content": turn.text}
    if turn.role == "user":
        if not turn.attachments:
            return {"role": "user", "content": turn.text}
        return {"role": "user", "content": [{"type": "text", "text": turn.text}, *map(chat_part, turn.attachments)]}
    state = (
        turn.provider_state if turn.provider_state is not None and turn.provider_state.get("origin") == origin else {}
    )
    message: dict[str, Any] = {"role": "assistant", "content": turn.text or None}
    if not turn.calls:
        message["content"] = turn.text
    if isinstance(parts := state.get("content"), list):
        message["content"] = parts
    if turn.calls:
        kept = state.get("calls")
        beside = kept if isinstance(kept, list) else []
        message["tool_calls"] = [
            _call(call, beside[place] if place < len(beside) else {}, known) for place, call in enumerate(turn.calls)
        ]
    more = state.get("message")
    extra = more if isinstance(more, dict) else {}
    names = [name for name in extra if known.sends_extra(name) and (turn.calls or name not in _ONLY_WITH_CALLS)]
    return {**message, **{name: extra[name] for name in names}}


def _call(call: ToolCall, beside: JsonValue, known: Capabilities) -> dict[str, Any]:
    # Broken arguments of an earlier call become `{}`, because the prompt templates of some servers parse them.
    arguments = call.arguments if parse_strict_json(call.arguments) is not None else "{}"
    more = beside if isinstance(beside, dict) else {}
    function = more.get("function")
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": arguments, **(function if isinstance(function, dict) else {})},
        **{name: value for name, value in more.items() if name != "function" and known.sends_extra(name)},
    }


# Replies


def _read(whole: Field, request: ModelRequest) -> ParsedReply:
    choice = next(whole.get("choices").items(), None)
    if choice is None:
        raise whole.get("choices").error("a list with one choice")
    choice.object()
    message = choice.get("message")
    parsed = ParsedReply(
        model=whole.get("model").label(),
        id=whole.get("id").label(),
        reason=choice.first("finish_reason", "finishReason", "stop_reason", "finish_reason"),
        error=choice.get("error").value or None,
    )
    if message.value is None and isinstance(choice.get("text").value, str):  # a server of the older completions API
        message = Field({"content": choice.get("text").value}, choice.path)
    if message.value is None:
        return parsed
    message.object()
    parsed.text, parsed.refusal = content_text(message.get("content"))
    parsed.refusal = parsed.refusal or refusal_text(message.get("refusal"))
    raw = [call.object() for call in message.get("tool_calls").items()]
    if not raw and message.get("function_call").value is not None:  # a server of the API of 2023, with one call
        raw = [Field({"function": message.get("function_call").value}, message.path)]
    calls = [call for call in raw if _is_function(call)]
    parsed.calls = [_tool_call(call) for call in calls]
    parsed.state = _state(message, calls)
    return parsed


def _is_function(call: Field) -> bool:
    return call.get("function").value is not None or (
        call.get("name").value is not None and call.get("type").value in (None, "function", "tool_use", "tool_call")
    )


def _tool_call(call: Field) -> ToolCall:
    function = call.get("function")
    place = call if function.value is None else function.object()
    arguments = place.first("arguments", "input", "parameters") if function.value is None else place.get("arguments")
    return ToolCall(call.get("id").label(), place.get("name").text(), as_arguments(arguments))


def _state(message: Field, calls: list[Field]) -> dict[str, JsonValue] | None:
    """Return the opaque parts of a turn, which only the server understands, such as the signatures of thoughts."""
    state: dict[str, JsonValue] = {}
    if more := extras(message.value, _MESSAGE_FIELDS):
        state["message"] = more
    content = message.get("content").value
    if isinstance(content, list) and any(not _is_plain(part) for part in content):
        state["content"] = sanitized(content)
    beside = [_beside(call) for call in calls]
    if any(beside):
        state["calls"] = [*beside]
    return state or None


def _beside(call: Field) -> dict[str, JsonValue]:
    more = extras(call.value, _CALL_FIELDS)
    function = call.get("function").value
    if isinstance(function, dict) and (inner := extras(function, ("name", "arguments"))):
        more["function"] = inner
    return more


def _is_plain(part: object) -> bool:
    return isinstance(part, str) or (isinstance(part, dict) and part.keys() <= {"type", "text"})


# Streams


@dataclass(slots=True)
class _StreamedCall:
    """A tool call that is being assembled from its pieces."""

    place: int
    id: str = ""
    names: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    given: Any = None
    more: dict[str, Any] = field(default_factory=dict)
    function: dict[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return "".join(self.arguments)


class _ChunkedCompletion:
    """A completion put together from its chunks."""

    def __init__(self, request: ModelRequest) -> None:
        self._tools = frozenset(tool.name for tool in request.tools)
        self._head: dict[str, Any] = {}
        self._counts: dict[str, int] = {}
        self._texts: dict[str, list[str]] = {"content": [], "refusal": []}
        self._parts: list[Any] = []
        self._more: dict[str, Any] = {}
        self._calls: list[_StreamedCall] = []
        self._finish: Any = None
        self._error: Any = None
        self._has_choices = False

    def add(self, event: Field) -> str:
        chunk = event.object()
        merge_usage(self._counts, chunk)
        self._head |= {name: label for name in ("id", "model") if (label := chunk.get(name).label())}
        text = ""
        for choice in chunk.get("choices").items():
            if choice.object().get("index").value not in (None, 0, "0"):
                continue  # further choices are ignored, because the request asks for one choice
            self._has_choices = True
            self._finish = choice.first("finish_reason", "finishReason").value or self._finish
            self._error = choice.get("error").value or self._error
            delta = choice.first("delta", "message")
            if delta.value is not None:
                text += self._add_delta(delta.object())
        return text

    def whole(self) -> Field:
        message: dict[str, Any] = {"role": "assistant"}
        for name, value in self._more.items():
            message[name] = _settled(value)
        message["content"] = "".join(self._texts["content"]) or None
        if self._parts:
            message["content"] = self._parts
        message["refusal"] = "".join(self._texts["refusal"]) or None
        message["tool_calls"] = [self._whole_call(call) for call in sorted(self._calls, key=lambda each: each.place)]
        choice = {"index": 0, "message": message, "finish_reason": self._finish, "error": self._error}
        choices = [choice] if self._has_choices else []
        return Field({**self._head, "usage": self._counts, "choices": choices})

    def _add_delta(self, delta: Field) -> str:
        content, told = delta.get("content"), ""
        if isinstance(content.value, list | dict):
            self._parts += content.value if isinstance(content.value, list) else [content.value]
            told, refused = content_text(content)
            self._texts["refusal"].append(refused)
        else:
            told = content.text("")
            if self._parts and told:
                self._parts.append({"type": "text", "text": told})
            self._texts["content"].append(told)
        self._texts["refusal"].append(refusal_text(delta.get("refusal")))
        for part in delta.get("tool_calls").items():
            self._add_call(part.object())
        if (function := delta.get("function_call")).value is not None:
            self._add_call(Field({"index": 0, "function": function.value}, delta.path))
        for name, value in delta.value.items():
            if name not in _MESSAGE_FIELDS and value is not None:
                self._more[name] = _merged(self._more.get(name), value, name)
        return told

    def _add_call(self, part: Field) -> None:
        function = part.get("function")
        inner = part if function.value is None else function.object()
        name, given = inner.get("name").text(""), inner.get("arguments")
        call = self._call_of(part, name, given)
        call.id = call.id or part.get("id").label()
        if name:
            call.names.append(name)
        if isinstance(given.value, str):
            call.arguments.append(given.value)
        elif given.value is not None:
            call.given = given.value
        for key, value in part.value.items():
            if key not in _CALL_FIELDS and value is not None:
                call.more[key] = _merged(call.more.get(key), value)
        for key, value in inner.value.items() if function.value is not None else ():
            if key not in ("name", "arguments") and value is not None:
                call.function[key] = _merged(call.function.get(key), value)

    def _call_of(self, part: Field, name: str, given: Field) -> _StreamedCall:
        """Return the call that a piece continues, or a new call.

        The index alone does not show the call, because some servers omit the index or use 0 for every call. So a piece
        with a new id, or with a name after complete arguments, also begins a new call.
        """
        id, place = part.get("id").label(), _place(part.get("index").value)
        same = [call for call in self._calls if place is None or call.place == place]
        if id and (known := next((call for call in same if call.id == id), None)) is not None:
            return known
        last = same[-1] if same else None
        if last is None or (id and last.id) or self._begins(last, name, given):
            last = _StreamedCall(place if place is not None else len(self._calls))
            self._calls.append(last)
        return last

    def _begins(self, last: _StreamedCall, name: str, given: Field) -> bool:
        """Return True if a piece begins a new call after `last`, for a server that sends neither indexes nor ids.

        The name and the arguments of the piece decide.
        """
        if not name or not last.names:
            return False
        if last.given is not None or isinstance(parse_strict_json(last.text), dict):
            is_more = given.value not in (None, "", {})
            return is_more or name != repeated_name(last.names, self._tools)
        so_far = "".join(last.names)
        is_part = any(tool.startswith((so_far + name, name + so_far)) for tool in self._tools)
        return not last.text and so_far in self._tools and name in self._tools and name != so_far and not is_part

    def _whole_call(self, call: _StreamedCall) -> dict[str, Any]:
        arguments = call.text if call.text.strip() else call.given
        if call.arguments and parse_strict_json(call.text) is None:
            last = call.arguments[-1]  # if each piece of a server repeats the earlier pieces, the last piece is whole
            arguments = last if isinstance(parse_strict_json(last), dict) else arguments
        name = repeated_name(call.names, self._tools)
        function = {**call.function, "name": name or None, "arguments": arguments}
        return {**_settled(call.more), "id": call.id, "type": "function", "function": _settled(function)}


def _place(index: object) -> int | None:
    if isinstance(index, str):
        return whole_number(index)
    if isinstance(index, bool) or not isinstance(index, int | float) or index != index or abs(index) > 10**9:
        return None
    return int(index)


class _Pieces(list[str]):
    """The pieces of a text in an opaque field."""


_CONSTANT: Final = ("type", "id", "index", "format", "role", "name", "signature", "thought_signature")
"""Fields of opaque objects whose texts always arrive whole, so they are not joined. Other texts arrive in pieces."""


def _merged(known: Any, piece: Any, name: str = "") -> Any:
    """Return an opaque value with its next piece. Texts and lists grow, objects are merged, any other is replaced."""
    match known, piece:
        case _Pieces(), str() if name not in _CONSTANT:
            known.append(piece)
            return known
        case _, str() if name not in _CONSTANT:
            return _Pieces([piece])
        case _Pieces(), dict() | list():
            return _merged(None, piece, name)
        case dict(), dict():
            return {**known, **{key: _merged(known.get(key), value, key) for key, value in piece.items()}}
        case None, dict():
            return {key: _merged(None, value, key) for key, value in piece.items()}
        case list(), list():
            return _merged_lists(known, piece)
        case None, list():
            return _merged_lists([], piece)
        case _:
            return piece


def _merged_lists(known: list[Any], pieces: list[Any]) -> list[Any]:
    """Return a list with more items. An item with the index and type of a known item continues the known item."""
    for piece in pieces:
        if not isinstance(piece, dict):
            known.append(piece)
            continue
        index = piece.get("index")
        same = next(
            (place for place, each in enumerate(known)
             if isinstance(each, dict) and index is not None and each.get("index") == index
             and each.get("type") == piece.get("type")),
            None,
        )  # fmt: skip
        if same is None:
            known.append(_merged(None, piece))
        else:
            known[same] = _merged(known[same], piece)
    return known


def _settled(value: Any) -> Any:
    """Return an opaque value with the pieces of its texts joined."""
    match value:
        case _Pieces():
            return repeated_text(value)
        case dict():
            return {key: _settled(each) for key, each in value.items()}
        case list():
            return [_settled(each) for each in value]
        case _:
            return value


def _send(client: Any, body: dict[str, Any]) -> Any:
    return open_response(client.chat.completions, body, "model", "messages", "stream")


CHAT_COMPLETIONS: Final = Dialect(
    name="chat-completions",
    key_variable="OPENAI_API_KEY",
    write=_write,
    read=_read,
    stream=_ChunkedCompletion,
    send=_send,
)


class OpenAIModel(OpenAIServer):
    """A model behind OpenAI's chat completions API."""

    dialect = CHAT_COMPLETIONS
