"""Convert a `ParsedReply`, the common form in which all adapters return a reply, to a `ModelReply`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import JsonValue

from pointsman.errors import ModelError, ModelReplyError
from pointsman.llm.dialects import USAGE_NAMES, finish_of
from pointsman.llm.errors import error_from_stream_event
from pointsman.llm.foreign_json import Field, sanitized
from pointsman.llm.json_extraction import find_json, parse_strict_json
from pointsman.llm.json_schemas import unwrapped
from pointsman.llm.prices import with_cost
from pointsman.llm.thinking import without_thinking
from pointsman.ports.model import ModelReply, ModelRequest, ToolCall
from pointsman_schemas.events import Usage
from pointsman_schemas.strict_json import compact_json

__all__ = [
    "ABSENT",
    "ParsedReply",
    "as_arguments",
    "content_text",
    "extras",
    "merge_usage",
    "model_reply",
    "read_usage",
    "refusal_text",
    "repeated_name",
    "repeated_text",
    "schema_instructions",
    "unreadable",
]

ABSENT: Final[Any] = object()
"""Value of `ParsedReply.answer` if the reply has no structured answer as a tool call. It is not None, because None can
be an answer."""

_THINKING_PARTS: Final = frozenset({
    "thinking", "reasoning", "reasoning_content", "redacted_thinking", "thought", "summary_text", "reasoning_text",
})  # fmt: skip
"""The types of parts that contain the thinking of a model."""


@dataclass(slots=True)
class ParsedReply:
    """A reply in the common form of all adapters, before `model_reply` compares it with the request.

    Attributes:
        text: The answer, without the model's thinking.
        refusal: The text of a refusal; empty if the model did not refuse.
        calls: The tool calls.
        answer: The structured answer, if the model gave it as a tool call; otherwise `ABSENT`.
        reason: The provider's reason for the end of the answer.
        error: The error object of an answer that ended with an error.
        usage: The tokens, without their price.
        model: The model that answered; empty if the server does not name the model.
        id: The id of the reply.
        state: Opaque data of the turn, which the next request must send back to the provider; None without such data.
    """

    text: str = ""
    refusal: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    answer: Any = ABSENT
    reason: Field = field(default_factory=lambda: Field(None))
    error: object = None
    usage: Usage = Usage(calls=1)
    model: str = ""
    id: str = ""
    state: dict[str, JsonValue] | None = None


def model_reply(parsed: ParsedReply, request: ModelRequest, provider: str, model: str) -> ModelReply:
    """Return the reply to a request.

    Args:
        parsed: The parsed reply.
        request: The request.
        provider: The name of the provider, for the price.
        model: The model in the request.

    Returns:
        The reply. If the answer was cut off or refused, its tool calls are left out.

    Raises:
        ModelError: The answer ended with an error.
        ModelReplyError: The provider does not state how the answer ended.
    """
    usage = with_cost(provider, parsed.model or model, parsed.usage, model)
    if parsed.error is not None:
        failure = error_from_stream_event(provider, parsed.error, usage)
        raise failure
    reason = parsed.reason.text("")
    if not reason.strip():
        raise parsed.reason.error("the reason why the answer ended")
    finish: str = "refusal" if parsed.refusal else finish_of(reason)
    if finish == "error":
        raise ModelError(f"{provider} stopped the answer early: {reason}", retryable=True, usage=usage)
    if finish == "stop" and _is_cut(parsed, request):
        finish = "length"
    calls = tuple(parsed.calls) if finish == "stop" else ()
    if calls:
        finish = "tool_calls"
    text, data = parsed.refusal or parsed.text, None
    if finish == "stop" and parsed.answer is not ABSENT:
        text = json.dumps(parsed.answer)
        data = parse_strict_json(text)
    elif finish == "stop" and request.output_schema is not None:
        data = _structured(parsed.text)
    if data is not None and request.output_schema is not None:
        data = unwrapped(request.output_schema, data)
    return ModelReply(
        text=text,
        calls=calls,
        data=data,
        usage=usage,
        finish=finish,
        model=parsed.model or model,
        id=parsed.id,
        provider_state=parsed.state if finish in ("stop", "tool_calls") else None,
    )


def _is_cut(parsed: ParsedReply, request: ModelRequest) -> bool:
    """Return True if an answer was cut off within the arguments of a call.

    If a cut answer calls a tool, some servers report the answer as whole. So an answer with broken arguments counts as
    cut if it has used all its tokens, or if the arguments have no closing brace. The number of tokens alone is not
    enough, because a server may have a lower limit or count no tokens.
    """
    broken = [call.arguments for call in parsed.calls if not isinstance(parse_strict_json(call.arguments), dict)]
    used_up = parsed.usage.output_tokens >= request.max_tokens
    return any(used_up or (text.lstrip().startswith("{") and not text.rstrip().endswith("}")) for text in broken)


def _structured(text: str) -> JsonValue:
    """Return the JSON value of a text, or None if the text does not have exactly one value."""
    found = find_json(text)
    return found[0] if len(found) == 1 else None


# Usage


def read_usage(*places: Field, cached_apart: bool = False) -> Usage:
    """Return the usage of a call. The usage always counts one call.

    Args:
        *places: Objects with the counts as members, or with a member such as `usage`. If there are several counts of
            one kind, the largest is used, because each count of a stream is the total so far.
        cached_apart: True if the API counts the tokens of its cache separately, and not as input.
    """
    read = written = total = 0
    for place in _counters(places):
        tokens = max((place.get(name).count() for name in USAGE_NAMES.input), default=0)
        if cached_apart:
            tokens += sum(place.get(name).count() for name in USAGE_NAMES.cached)
        read = max(read, tokens)
        written = max(written, *(place.get(name).count() for name in USAGE_NAMES.output))
        total = max(total, *(place.get(name).count() for name in USAGE_NAMES.total))
    if total > read + written:  # Gemini and xAI count thinking only in the total, so count the rest as output
        read, written = (read, total - read) if read else (total - written, written)
    return Usage(calls=1, input_tokens=read, output_tokens=written)


def merge_usage(counts: dict[str, int], *events: Field) -> None:
    """Merge the counts of a stream's events into `counts`. Each count is the total so far, so keep the largest."""
    names = (*USAGE_NAMES.input, *USAGE_NAMES.output, *USAGE_NAMES.total, *USAGE_NAMES.cached)
    for place in _counters(events):
        for name in names:
            if (count := place.get(name).count()) > counts.get(name, 0):
                counts[name] = count


def _counters(places: Iterable[Field]) -> Iterable[Field]:
    for place in places:
        yield place
        for name in USAGE_NAMES.containers:
            inner = place.get(name)
            yield inner
            yield inner.get("usage")


# Text


def content_text(content: Field) -> tuple[str, str]:
    """Return the text and the refusal in the content of a message. The content is a text or a list of parts.

    Thinking, images and other parts without text are left out.

    Raises:
        ModelReplyError: The content is neither a text nor parts, or a part is not valid.
    """
    if content.value is None:
        return "", ""
    if isinstance(content.value, str):
        return without_thinking(content.value), ""
    texts: list[str] = []
    refusals: list[str] = []
    parts = [content] if isinstance(content.value, dict) else content.items()
    for part in parts:
        if isinstance(part.value, str):
            texts.append(part.value)
            continue
        kind = part.object().get("type").label()
        if kind == "refusal":
            refusals.append(part.first("refusal", "text").text(""))
        elif kind not in _THINKING_PARTS and not part.get("thought").value:
            said = part.get("text")
            texts.append((said.get("value") if isinstance(said.value, dict) else said).text(""))
    return without_thinking("".join(texts)), "".join(refusals)


def refusal_text(field: Field) -> str:
    """Return the text of a refusal; empty if the value is not text."""
    return field.value if isinstance(field.value, str) else ""


# Tool calls


def as_arguments(field: Field) -> str:
    """Return the arguments of a tool call as JSON text. Missing arguments become `{}`."""
    value = field.value
    if isinstance(value, str):
        return _one_of(value) if value.strip() else "{}"
    return "{}" if value is None else json.dumps(sanitized(value))


def _one_of(text: str) -> str:
    """Return the arguments without a repetition. Some servers send them twice, or send an empty object before them."""
    if parse_strict_json(text) is not None:
        return text
    try:
        _, end = json.JSONDecoder().raw_decode(text.lstrip())
    except (ValueError, RecursionError):
        return text
    first, rest = text.lstrip()[:end], text.lstrip()[end:].strip()
    return rest if rest == first or (first.replace(" ", "") == "{}" and parse_strict_json(rest) is not None) else text


def repeated_name(pieces: Sequence[str], known: Iterable[str]) -> str:
    """Return the name of a tool from the pieces of a stream.

    Some servers send a name in parts. Others send the whole name in each piece, or a longer part in each piece. So both
    the joined pieces and each single piece are compared with the names of the offered tools. If no name matches, equal
    pieces count as one name, and different pieces count as parts of a name.
    """
    names = frozenset(known)
    whole = "".join(pieces)
    candidates = (whole, *dict.fromkeys(reversed(pieces)))
    if (found := next((each for each in candidates if each in names), None)) is not None:
        return found
    distinct = list(dict.fromkeys(piece for piece in pieces if piece))
    return distinct[0] if len(distinct) == 1 else whole


def repeated_text(pieces: Sequence[str]) -> str:
    """Return the text of an opaque field from the pieces of a stream.

    If all pieces are equal and long, the server has repeated the whole text, so one piece is the text. Otherwise, the
    pieces are joined.
    """
    distinct = dict.fromkeys(pieces)
    return pieces[0] if len(distinct) == 1 and len(pieces[0]) > 16 else "".join(pieces)


# The request


def schema_instructions(instructions: str, schema: Mapping[str, JsonValue]) -> str:
    """Return the instructions with the schema of the answer, for a server without a parameter for schemas."""
    written = compact_json(dict(schema)).decode()
    return f"{instructions}\n\nAnswer with one JSON object and nothing else, by this JSON Schema: {written}"


# Opaque data


def extras(value: Mapping[str, Any], known: Iterable[str]) -> dict[str, JsonValue]:
    """Return the members of an object that have a value and are not in `known`, as strict JSON."""
    names = frozenset(known)
    found = {str(name): sanitized(each) for name, each in value.items() if name not in names}
    return {name: each for name, each in found.items() if each not in (None, "", [], {})}


def unreadable(error: ModelReplyError, provider: str, usage: Usage) -> ModelReplyError:
    """Return the error for a reply that cannot be read, with the name of the provider and the used tokens."""
    return ModelReplyError(
        f"{provider} answered 200 with something that is not a reply: {error}", path=error.path, usage=usage
    )
