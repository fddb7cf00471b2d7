"""Call Anthropic's messages API at any server that has the API. The SDK makes no retries and no spans."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from pydantic import JsonValue

from pointsman.llm.attachments import anthropic_block
from pointsman.llm.capabilities import Capabilities
from pointsman.llm.foreign_json import Field, parse_foreign, sanitized
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
    schema_instructions,
)
from pointsman.llm.thinking import without_thinking
from pointsman.ports.model import ModelRequest, ToolCall, Turn

__all__ = ["MESSAGES", "AnthropicModel"]

_PLAIN_BLOCKS: Final = {"text": ("type", "text"), "tool_use": ("type", "id", "name", "input")}
"""The fields of the blocks that this module itself writes for an earlier turn. All other blocks and fields of the turn
are opaque, and are sent back unchanged."""


# Requests


def _write(request: ModelRequest, model: str, known: Capabilities, origin: str) -> dict[str, Any]:
    schema = object_schema(request.output_schema) if request.output_schema is not None else None
    has_answer_tool = schema is not None and known.output_mode(request.output_name) == "json_schema"
    instructions = request.instructions
    if schema is not None and not has_answer_tool:
        instructions = schema_instructions(instructions, schema)
    body: dict[str, Any] = {
        "model": model,
        "system": instructions,
        "messages": _messages(request.turns, origin),
        "max_tokens": known.answer_tokens(request),
    }
    if request.temperature is not None:
        body["temperature"] = request.temperature
    tools = [
        {"name": tool.name, "description": tool.description, "input_schema": tool_parameters(tool.parameters)}
        for tool in request.tools
    ]
    if has_answer_tool and schema is not None:
        # The model must give its answer as the input of this tool. A tool accepts any schema, and the model can still
        # use other tools first.
        tools.append({"name": request.output_name, "description": "Give the final answer.", "input_schema": schema})
        body["tool_choice"] = {"type": "any"} if request.tools else {"type": "tool", "name": request.output_name}
    if tools:
        body["tools"] = tools
    return body


def _messages(turns: Sequence[Turn], origin: str) -> list[dict[str, Any]]:
    """Return the turns as messages. The API demands that all results of one turn's tool calls are in one message."""
    messages: list[dict[str, Any]] = []
    for turn in turns:
        role = "assistant" if turn.role == "assistant" else "user"
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"].extend(_blocks(turn, origin))
        else:
            messages.append({"role": role, "content": _blocks(turn, origin)})
    return messages


def _blocks(turn: Turn, origin: str) -> list[dict[str, Any]]:
    if turn.role == "tool":
        return [{"type": "tool_result", "tool_use_id": turn.call_id, "content": turn.text, "is_error": turn.is_error}]
    text: list[dict[str, Any]] = [anthropic_block(each) for each in turn.attachments]
    text += [{"type": "text", "text": turn.text}] if turn.text.strip() else []
    calls = [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": _input(call.arguments)} for call in turn.calls
    ]
    if turn.provider_state is None or turn.provider_state.get("origin") != origin:
        return text + calls
    return list(_opaque_blocks(turn.provider_state.get("content"), text, calls))


def _opaque_blocks(
    kept: JsonValue, text: list[dict[str, Any]], calls: list[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Yield the blocks of a turn, with the thinking, in the order in which the model wrote the blocks."""
    blocks = [block for block in kept if isinstance(block, dict)] if isinstance(kept, list) else []
    has_text = any(block.get("type") == "text" for block in blocks)
    is_first_call = True
    for block in blocks:
        if block.get("type") == "tool_use":
            if is_first_call and not has_text:
                yield from text
            is_first_call = False
            if calls:
                yield {**block, **calls.pop(0)}
        else:
            yield block
    if is_first_call and not has_text:
        yield from text
    yield from calls


def _input(text: str) -> dict[str, Any]:
    value = parse_strict_json(text)
    return value if isinstance(value, dict) else {}


# Replies


def _read(whole: Field, request: ModelRequest) -> ParsedReply:
    content = whole.get("content")
    if content.value is None and whole.get("stop_reason").value is None:
        raise content.error("a list of blocks")
    parsed = ParsedReply(
        model=whole.get("model").label(), id=whole.get("id").label(), reason=whole.first("stop_reason", "stop_reason")
    )
    blocks = list(content.items()) if not isinstance(content.value, str) else []
    if isinstance(content.value, str):
        parsed.text = without_thinking(content.value)
    answer_tool = request.output_name if request.output_schema is not None else None
    texts: list[Any] = []
    for block in blocks:
        if isinstance(block.value, str):
            texts.append(block.value)
            continue
        kind = block.object().get("type").label()
        if kind == "tool_use":
            name, given = block.get("name").text(), block.get("input")
            if name == answer_tool:
                parsed.answer = _object(given)
            else:
                parsed.calls.append(ToolCall(block.get("id").label(), name, as_arguments(given)))
        elif kind == "text":
            texts.append({"type": "text", "text": block.get("text").text("")})
    if texts:
        parsed.text, _ = content_text(Field(texts, content.path))
    details = whole.get("stop_details")
    if whole.get("stop_reason").value == "refusal" and not parsed.text:
        parsed.refusal = refusal_text(details.get("explanation"))
    parsed.state = _state(blocks, answer_tool)
    return parsed


def _object(given: Field) -> Any:
    """Return the input of a tool as a value. Some servers send the JSON text of the value."""
    return parse_foreign(given.value, given.path).value if isinstance(given.value, str) else given.value


def _state(blocks: list[Field], answer_tool: str | None) -> dict[str, JsonValue] | None:
    """Return the blocks of a turn, without the inputs of tools, if one block is opaque, such as thinking; else None."""
    kept: list[JsonValue] = []
    is_opaque = False
    for block in blocks:
        if not isinstance(block.value, dict):
            continue
        kind = block.get("type").label()
        if kind == "tool_use" and block.get("name").value == answer_tool:
            continue
        own = ("id", "name", "input") if kind == "tool_use" else ()
        written = extras(block.value, own) if kind == "tool_use" else _without_nulls(block.value)
        if kind == "text" and not str(written.get("text", "")).strip():
            continue  # blank text is not sent back, because the API refuses blank text
        is_opaque = is_opaque or kind not in _PLAIN_BLOCKS or not written.keys() <= {*_PLAIN_BLOCKS[kind]}
        kept.append(written)
    return {"content": kept} if is_opaque else None


def _without_nulls(value: dict[str, Any]) -> dict[str, JsonValue]:
    return {str(name): sanitized(each) for name, each in value.items() if each is not None}


# Streams


class _StreamedMessage:
    """Assembles a message from its events. The text comes from the text blocks and from the JSON of the answer tool."""

    def __init__(self, request: ModelRequest) -> None:
        self._answer_tool = request.output_name if request.output_schema is not None else None
        self._message: dict[str, Any] = {}
        self._counts: dict[str, int] = {}
        self._blocks: dict[int, dict[str, Any]] = {}
        self._inputs: dict[int, list[str]] = {}
        self._last = 0

    def add(self, event: Field) -> str:
        kind = event.object().get("type").label()
        merge_usage(self._counts, event)
        match kind:
            case "message_start":
                message = event.get("message").object()
                merge_usage(self._counts, message)
                self._message |= {name: value for name, value in message.value.items() if name != "content"}
                for place, block in enumerate(message.get("content").items()):
                    self._blocks[place] = dict(block.object().value)
            case "content_block_start":
                block = event.get("content_block").object()
                self._last = self._place(event, len(self._blocks))
                self._blocks[self._last] = dict(block.value)
                return block.get("text").text("") if block.get("type").value == "text" else ""
            case "content_block_delta":
                return self._add_delta(self._place(event, self._last), event.get("delta").object())
            case "message_delta":
                delta = event.get("delta")
                self._message |= {name: value for name, value in delta.object().value.items() if value is not None}
            case _:
                pass
        return ""

    def whole(self) -> Field:
        blocks = []
        for place, block in sorted(self._blocks.items()):
            written = dict(block)
            if pieces := "".join(self._inputs.get(place, ())).strip():
                written["input"] = pieces
            blocks.append(written)
        return Field({**self._message, "content": blocks, "usage": self._counts})

    def _place(self, event: Field, default: int) -> int:
        index = event.get("index").value
        return index if isinstance(index, int) and not isinstance(index, bool) else default

    def _is_answer(self, place: int) -> bool:
        """Return True if a block is a call of the answer tool. The input of this tool is the structured answer."""
        block = self._blocks.get(place, {})
        return block.get("type") == "tool_use" and block.get("name") == self._answer_tool is not None

    def _add_delta(self, place: int, delta: Field) -> str:
        kind = delta.get("type").label()
        block = self._blocks.setdefault(place, {"type": _BLOCK_BY_DELTA.get(kind, "text")})
        self._last = place
        if kind == "input_json_delta" or "partial_json" in delta.value:
            piece = delta.get("partial_json").text("")
            self._inputs.setdefault(place, []).append(piece)
            return piece if self._is_answer(place) else ""
        for name, value in delta.value.items():
            if name == "type" or value is None:
                continue
            if kind == "citations_delta" and name == "citation":
                block["citations"] = [*(block.get("citations") or ()), value]
            elif isinstance(value, str) and name != "signature":
                known = block.get(name)
                block[name] = (known if isinstance(known, str) else "") + value
            else:
                block[name] = value
        is_text = kind == "text_delta" or (not kind and block.get("type") == "text")
        return delta.get("text").text("") if is_text else ""


_BLOCK_BY_DELTA: Final = {
    "text_delta": "text",
    "input_json_delta": "tool_use",
    "thinking_delta": "thinking",
    "signature_delta": "thinking",
}


def _send(client: Any, body: dict[str, Any]) -> Any:
    return open_response(client.messages, body, "model", "messages", "max_tokens", "stream")


MESSAGES: Final = Dialect(
    name="messages",
    key_variable="ANTHROPIC_API_KEY",
    write=_write,
    read=_read,
    stream=_StreamedMessage,
    send=_send,
    cached_apart=True,
)


class AnthropicModel(ProviderModel):
    """A model behind Anthropic's messages API.

    The server is `base_url`, `ANTHROPIC_BASE_URL` or Anthropic's own server. The key is `api_key` or
    `ANTHROPIC_API_KEY`.
    """

    provider = "anthropic"
    dialect = MESSAGES

    def _new_client(self, sdk: Any) -> Any:
        # Make the HTTP client here. If the SDK makes its default HTTP client and fails, the SDK prints an error.
        return sdk.AsyncAnthropic(
            api_key=self._key,
            base_url=self._base_url,
            max_retries=0,
            timeout=self._timeout,
            http_client=sdk.DefaultAsyncHttpxClient(timeout=self._timeout),
            open_telemetry=False,
        )
