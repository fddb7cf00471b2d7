"""Call OpenAI's responses API. Each call gets one reply, without a retry. The server stores nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from pydantic import JsonValue

from pointsman.llm.attachments import response_part
from pointsman.llm.capabilities import Capabilities
from pointsman.llm.foreign_json import Field, sanitized
from pointsman.llm.json_schemas import object_schema, tool_parameters
from pointsman.llm.openai import OpenAIServer
from pointsman.llm.provider_model import Dialect, open_response
from pointsman.llm.replies import (
    ParsedReply,
    as_arguments,
    content_text,
    merge_usage,
    schema_instructions,
)
from pointsman.ports.model import ModelRequest, ToolCall, Turn

__all__ = ["RESPONSES", "OpenAIResponsesModel"]

_REASONING_MODELS: Final = re.compile(r"^(?:o\d|gpt-5(?!.*chat)|codex|computer-use)")
"""The names of models that reason. The server does not store the reasoning, so the request asks for the reasoning in
encrypted form. The next request sends it back together with the results of tools."""
_ENCRYPTED: Final = "reasoning.encrypted_content"
_UNSENT_FIELDS: Final = ("logprobs", "status")
"""Fields of items that are not sent back, because the API returns them but refuses them in a request."""


# Requests


def _write(request: ModelRequest, model: str, known: Capabilities, origin: str) -> dict[str, Any]:
    schema = object_schema(request.output_schema) if request.output_schema is not None else None
    mode = known.output_mode(request.output_name)
    instructions = request.instructions
    if schema is not None and mode != "json_schema":
        instructions = schema_instructions(instructions, schema)
    body: dict[str, Any] = {
        "model": model,
        "instructions": instructions,
        "input": list(_items(request.turns, origin)),
        "max_output_tokens": known.answer_tokens(request),
        "store": False,
    }
    if known.thinks or _REASONING_MODELS.match(model):
        body["include"] = [_ENCRYPTED]
    if request.temperature is not None:
        body["temperature"] = request.temperature
    if request.tools:
        body["tools"] = [
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": tool_parameters(tool.parameters),
                "strict": False,
            }
            for tool in request.tools
        ]
    if schema is not None and mode == "json_schema":
        format = {"type": "json_schema", "name": request.output_name, "schema": schema, "strict": False}
        body["text"] = {"format": format}
    elif schema is not None and mode == "json_object":
        body["text"] = {"format": {"type": "json_object"}}
    return body


def _items(turns: Sequence[Turn], origin: str) -> Iterator[dict[str, Any]]:
    for turn in turns:
        if turn.role == "tool":
            yield {"type": "function_call_output", "call_id": turn.call_id, "output": turn.text}
            continue
        text: list[dict[str, Any]] = [{"role": turn.role, "content": turn.text}] if turn.text else []
        if turn.attachments:
            parts = [{"type": "input_text", "text": turn.text}, *map(response_part, turn.attachments)]
            text = [{"role": turn.role, "content": parts}]
        calls = [
            {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments}
            for call in turn.calls
        ]
        if turn.provider_state is None or turn.provider_state.get("origin") != origin:
            yield from (*text, *calls)
        else:
            yield from _opaque_items(turn.provider_state.get("output"), text, calls)


def _opaque_items(kept: JsonValue, text: list[dict[str, Any]], calls: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the items of a turn, reasoning included, in the order of the model's reply."""
    for item in kept if isinstance(kept, list) else ():
        if not isinstance(item, dict):
            continue
        match item.get("type"):
            case "function_call":
                yield from calls[:1]
                del calls[:1]
            case "message":
                yield from text
                text = []
            case _:
                yield item
    yield from (*text, *calls)


# Replies


def _read(whole: Field, _: ModelRequest) -> ParsedReply:
    output, status = whole.get("output"), whole.get("status")
    details = whole.get("incomplete_details").get("reason")
    has_details = isinstance(details.value, str) and status.value != "completed"
    parsed = ParsedReply(
        model=whole.get("model").label(),
        id=whole.get("id").label(),
        reason=details if has_details else status,
        error=whole.get("error").value or None,
    )
    if parsed.error is not None:
        return parsed
    if output.value is None:
        raise output.error("a list of items")
    if status.value is None and output.value:  # some servers send no `status`; an output shows that the answer ended
        parsed.reason = Field("completed", status.path)
    if status.value in ("queued", "in_progress"):
        raise status.error("the status of a response that has ended")
    texts: list[str] = []
    refusals: list[str] = []
    items = [item.object() for item in output.items()]
    for item in items:
        match item.get("type").label():
            case "function_call":
                arguments = as_arguments(item.get("arguments"))
                call_id = item.first("call_id", "id").label()
                parsed.calls.append(ToolCall(call_id, item.get("name").text(), arguments))
            case "message":
                text, refusal = content_text(item.get("content"))
                texts.append(text)
                refusals.append(refusal)
            case _:
                pass
    parsed.text, parsed.refusal = "".join(texts), "".join(refusals)
    parsed.state = _state(items)
    return parsed


def _state(items: list[Field]) -> dict[str, JsonValue] | None:
    """Return the items of a turn if one item is opaque, such as reasoning that can be sent back."""
    kept: list[JsonValue] = []
    is_opaque = is_unsent = False
    for item in items:
        kind = item.get("type").label()
        if kind in ("function_call", "message"):
            kept.append({"type": kind})
        elif kind == "reasoning" and not (item.get("encrypted_content").value or item.get("content").value):
            is_unsent = True  # the item has only an id, and the server does not know the id later, so omit the item
        else:
            is_opaque = True
            found = {name: value for name, value in item.value.items() if name not in _UNSENT_FIELDS}
            kept.append(sanitized({name: value for name, value in found.items() if value is not None}))
    if not (is_opaque or is_unsent):
        return None
    return {"output": kept if is_opaque else [], "unsent": is_unsent}


# Streams


class _StreamedResponse:
    """A response that is assembled from its events. At most servers, the last event contains the whole response."""

    def __init__(self, _: ModelRequest) -> None:
        self._response: dict[str, Any] = {}
        self._counts: dict[str, int] = {}
        self._items: dict[int, dict[str, Any]] = {}
        self._arguments: dict[int, list[str]] = {}
        self._texts: dict[int, list[str]] = {}
        self._has_ended = False

    def add(self, event: Field) -> str:
        kind = event.object().get("type").label()
        merge_usage(self._counts, event, event.get("response"))
        match kind:
            case "response.output_text.delta":
                text = event.get("delta").text("")
                self._texts.setdefault(self._place(event), []).append(text)
                return text
            case "response.output_item.added" | "response.output_item.done":
                item = event.get("item").object()
                self._items[self._place(event)] = item.value
            case "response.function_call_arguments.delta":
                self._arguments.setdefault(self._place(event), []).append(event.get("delta").text(""))
            case "response.function_call_arguments.done":
                self._arguments[self._place(event)] = [as_arguments(event.get("arguments"))]
            case "response.created" | "response.in_progress":
                response = event.get("response")
                self._response = dict(response.object().value) if response.value is not None else {}
            case "response.completed" | "response.incomplete" | "response.failed" | "response.cancelled":
                self._has_ended = True
                self._response = dict(event.get("response").object().value)
                if not self._response.get("status"):
                    self._response["status"] = kind.removeprefix("response.")
            case _:
                pass
        return ""

    def whole(self) -> Field:
        found = {**self._response, "usage": self._counts}
        if not self._has_ended:
            found["status"] = None
            found["output"] = None
        elif not found.get("output"):
            found["output"] = [self._item(place) for place in sorted({*self._items, *self._texts})]
        return Field(found)

    def _item(self, place: int) -> dict[str, Any]:
        item = dict(self._items.get(place) or {"type": "message"})
        if (pieces := self._arguments.get(place)) and not item.get("arguments"):
            item["arguments"] = "".join(pieces)
        if (texts := self._texts.get(place)) and not item.get("content"):
            item["content"] = "".join(texts)
        return item

    def _place(self, event: Field) -> int:
        index = event.get("output_index").value
        return index if isinstance(index, int) and not isinstance(index, bool) else 0


def _send(client: Any, body: dict[str, Any]) -> Any:
    return open_response(client.responses, body, "model", "input", "stream")


RESPONSES: Final = Dialect(
    name="responses",
    key_variable="OPENAI_API_KEY",
    write=_write,
    read=_read,
    stream=_StreamedResponse,
    send=_send,
)


class OpenAIResponsesModel(OpenAIServer):
    """A model behind OpenAI's responses API. Like the other adapters, it sends the whole conversation each time."""

    dialect = RESPONSES
