"""Detect the parameters that a server and a model refuse, and write later requests without these parameters.

If a server refuses a parameter by name, the next request omits or renames the parameter. All agents of a process that
use the same model at the same server share the detected limits. The limits are forgotten when the last of these models
is closed.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias
from weakref import WeakValueDictionary

from pointsman.llm.errors import ErrorDetail
from pointsman.llm.json_schemas import without_keywords
from pointsman.llm.output_budget import MIN_CALL_TOKENS, estimate_input_tokens
from pointsman.ports.model import ModelRequest

__all__ = ["Capabilities", "OutputMode", "capabilities_of"]

OutputMode: TypeAlias = Literal["json_schema", "json_object", "prompt"]

_OUTPUT_MODES: Final[tuple[OutputMode, ...]] = ("json_schema", "json_object", "prompt")
"""The ways to request an answer by a schema, the strictest first. The second and the third way write the schema into
the instructions."""

_REFUSING_STATUSES: Final = frozenset({400, 415, 422, 500, 501})
"""The statuses with which servers refuse a parameter. llama.cpp answers 500 to an unknown response format."""

_TOKEN_LIMITS: Final = ("max_completion_tokens", "max_tokens")
"""The two names of the parameter for the length of an answer in chat completions. If a server refuses one name, the
other name is sent."""
_ALL_TOKEN_LIMITS: Final = (*_TOKEN_LIMITS, "max_output_tokens", "max_new_tokens")

_ESSENTIAL: Final = frozenset({"model", "messages", "input", "tools", "stream", "system", "instructions"})
"""Parameters that every request needs, so they are never left out."""

_OUTPUT_NAMES: Final = re.compile(
    r"response[_ ]?format|json[_ ]?schema|json[_ ]?object|structured[_ ]?outputs?|text\.format"
    r"|guided[_ ]?(?:json|decoding)|output[_ ]?(?:config|format)|\bgrammar\b",
    re.IGNORECASE,
)
_BAD_SCHEMA: Final = re.compile(
    r"invalid (?:json[ _])?schema"
    r"|(?:schema|grammar)[^.]{0,80}(?:invalid|unsupported|not supported|not permitted|too |fail)"
    r"|fail\w*[^.]{0,30}(?:schema|grammar)",
    re.IGNORECASE,
)
"""The text with which a server refuses one schema. The server may accept other schemas, so only answers by this schema
are requested in another way."""

_REFUSED: Final = re.compile(
    r"un(?:supported|recogni[sz]ed|known|expected|available)|not (?:supported|permitted|allowed|available|implemented"
    r"|accepted|enabled|recogni[sz]ed|valid)|extra|invalid|deprecated|does(?:n't| not) support|cannot find field"
    r"|no longer|incompatible|must be|only|forbidden|should not|too (?:large|high|big|long)|exceed|fail|remove|without",
    re.IGNORECASE,
)
_SYSTEM_ROLE: Final = re.compile(r"system (?:role|message|prompt|instruction)s?", re.IGNORECASE)
_SCHEMA_KEYWORDS: Final = (
    "$schema", "$id", "$comment", "additionalProperties", "const", "contentEncoding", "contentMediaType", "default",
    "dependentRequired", "deprecated", "discriminator", "examples", "exclusiveMaximum", "exclusiveMinimum", "format",
    "maxItems", "maxLength", "maxProperties", "maximum", "minItems", "minLength", "minProperties", "minimum",
    "multipleOf", "pattern", "patternProperties", "propertyNames", "readOnly", "title", "unevaluatedProperties",
    "uniqueItems", "writeOnly",
)  # fmt: skip
"""Schema keywords that may be left out, because Pointsman itself checks the answer and the arguments."""

_BOUND: Final = re.compile(
    r"at most|maximum|less than|range|too (?:large|high|big)|<=|exceed|up to|limit", re.IGNORECASE
)
_NUMBER: Final = re.compile(r"(?<![\w.])(\d{1,3}(?:,\d{3})+|\d+)(?![\w.]*[a-z])")
_WINDOW: Final = re.compile(r"context (?:length|window|size|limit)[^.\d]{0,60}?(\d[\d,]*)", re.IGNORECASE)
_PROMPT_TOKENS: Final = re.compile(
    r"(\d[\d,]*)\s*(?:tokens\s*)?(?:in|from|of) (?:the )?(?:messages|input|prompt|text input)"
    r"|(\d[\d,]*) (?:input|prompt) tokens|input length[^.\d]{0,60}(\d[\d,]*)",
    re.IGNORECASE,
)
_SUM: Final = re.compile(r"(\d[\d,]*)\s*\+\s*(\d[\d,]*)\s*>\s*(\d[\d,]*)")
_ESTIMATE_MARGIN: Final = 1.05

_EXTRA = "messages."
_KEYWORD = "schema."


@dataclass(slots=True, weakref_slot=True)
class Capabilities:
    """The detected limits of one model at one server.

    Attributes:
        left_out: Parameters that are not sent. `messages.NAME` means an opaque field of earlier turns, `schema.NAME`
            means a keyword of JSON Schema, and `system` means the role of the instructions.
        renamed: Parameters that are sent under another name.
        output_modes: For each name of an answer, the way to request the answer; `*` stands for all names.
        max_tokens: The largest accepted value of the parameter for the length of an answer; None if it is not known.
        window: The largest number of tokens of the input and the answer together; None if it is not known.
        token_rate: Number of input tokens that the server counts for each estimated input token.
        thinks: True if the model has returned reasoning that cannot be sent back. Later requests then ask for reasoning
            in a form that can be sent back.
    """

    left_out: set[str] = field(default_factory=set)
    renamed: dict[str, str] = field(default_factory=dict)
    output_modes: dict[str, OutputMode] = field(default_factory=dict)
    max_tokens: int | None = None
    window: int | None = None
    token_rate: float = 1.0
    thinks: bool = False

    def output_mode(self, name: str) -> OutputMode:
        """Return the way to request an answer. `name` is the name of the answer, as in `output_modes`."""
        modes: list[OutputMode] = [self.output_modes[key] for key in ("*", name) if key in self.output_modes]
        modes.sort(key=_OUTPUT_MODES.index)
        return modes[-1] if modes else _OUTPUT_MODES[0]

    def answer_tokens(self, request: ModelRequest) -> int:
        """Return the limit of the answer in tokens: the limit in the request, or a smaller known limit of the model."""
        bounds = [request.max_tokens]
        if self.max_tokens is not None:
            bounds.append(self.max_tokens)
        if self.window is not None:
            rest = self.window - math.ceil(estimate_input_tokens(request) * self.token_rate * _ESTIMATE_MARGIN)
            bounds.append(max(rest, MIN_CALL_TOKENS))
        return min(bounds)

    def applied(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the body of a request without the omitted parameters and with the renamed parameters."""
        found = {self.renamed.get(name, name): value for name, value in body.items() if name not in self.left_out}
        keywords = [name.removeprefix(_KEYWORD) for name in self.left_out if name.startswith(_KEYWORD)]
        if keywords or "strict" in self.left_out:
            found = {name: self._cleaned(value, keywords) for name, value in found.items()}
        return found

    def sends_extra(self, name: str) -> bool:
        """Return True if an opaque field of an earlier turn may be sent back."""
        return f"{_EXTRA}{name}" not in self.left_out

    def learn(self, status: int, detail: ErrorDetail, body: Mapping[str, Any], request: ModelRequest) -> str:
        """Find the parameter that the server has refused, and change the limits so that the next request avoids it.

        Args:
            status: The HTTP status of the refusal.
            detail: The parts of the refusal's body.
            body: The body of the request that was refused.
            request: The request that the body was written for.

        Returns:
            A description of the change in the next request; empty if the next request would be equal.
        """
        if status not in _REFUSING_STATUSES:
            return ""
        words, names = detail.message, _names(detail)
        is_named = _REFUSED.search(words) is not None
        sent = [name for name in _ALL_TOKEN_LIMITS if name in body]
        is_length = names & {*_ALL_TOKEN_LIMITS} or any(name in words for name in _ALL_TOKEN_LIMITS) or _room(words)
        if sent and is_length and (learned := self._learn_length(sent[0], body, words, names, request)):
            return learned
        if not (is_named or names):
            return ""
        return (
            self._learn_keyword({*detail.names}, body)
            or self._learn_output(words, names, request.output_name if request.output_schema is not None else "")
            or self._learn_parameter(words, names, body)
            or self._learn_extra(words, names, body)
            or self._learn_system(words, body)
        )

    def _learn_length(
        self, name: str, body: Mapping[str, Any], words: str, names: set[str], request: ModelRequest
    ) -> str:
        asked = body[name]
        if (found := _room(words)) is not None:
            whole, used = found
            if not MIN_CALL_TOKENS <= whole - used < asked:
                return ""
            self.window, self.token_rate = whole, max(used / max(estimate_input_tokens(request), 1), 0.01)
            return f"the input and the answer have at most {whole} tokens together"
        if _WINDOW.search(words):
            return ""
        smaller = [number for found in _NUMBER.findall(words) if MIN_CALL_TOKENS <= (number := _whole(found)) < asked]
        if smaller and _BOUND.search(words):
            if self.max_tokens is not None and max(smaller) >= self.max_tokens:
                return ""
            self.max_tokens = max(smaller)
            return f"an answer has at most {self.max_tokens} tokens"
        own = next((each for each in _TOKEN_LIMITS if self.renamed.get(each, each) == name), None)
        if own is None or own in self.renamed or not (names & {name} or name in words):
            return ""
        self.renamed[own] = next(each for each in _TOKEN_LIMITS if each != name)
        return f"{self.renamed[own]} is sent in place of {name}"

    def _learn_output(self, words: str, names: set[str], output_name: str) -> str:
        if not output_name or not (
            _OUTPUT_NAMES.search(words)
            or any(_OUTPUT_NAMES.search(name) for name in names)
            or _BAD_SCHEMA.search(words)
        ):
            return ""
        mode = self.output_mode(output_name)
        if mode == "prompt":
            return ""
        is_one_schema = mode == "json_schema" and _BAD_SCHEMA.search(words) is not None
        key = output_name if is_one_schema else "*"
        self.output_modes[key] = _OUTPUT_MODES[_OUTPUT_MODES.index(mode) + 1]
        return f"the schema of {output_name if is_one_schema else 'an answer'} is in the instructions"

    def _learn_parameter(self, words: str, names: set[str], body: Mapping[str, Any]) -> str:
        for name in (*(each for each in body if each not in _ESSENTIAL), "strict"):
            if name in self.left_out or name in _ALL_TOKEN_LIMITS or (name == "strict" and not _has_strict(body)):
                continue
            is_word = "_" in name or name == "temperature"  # not `store` or `include`, which are also ordinary words
            if name in names or (is_word and re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", words)):
                self.left_out.add(name)
                return f"{name} is left out"
        return ""

    def _learn_extra(self, words: str, names: set[str], body: Mapping[str, Any]) -> str:
        for name in _extras(body):
            if self.sends_extra(name) and (name in names or re.search(rf"\b{re.escape(name)}\b", words)):
                self.left_out.add(f"{_EXTRA}{name}")
                return f"the field {name} of earlier answers is left out"
        return ""

    def _learn_keyword(self, names: set[str], body: Mapping[str, Any]) -> str:
        written = None
        for name in _SCHEMA_KEYWORDS:
            if name not in names or f"{_KEYWORD}{name}" in self.left_out:
                continue
            written = json.dumps(body, default=str) if written is None else written
            if f'"{name}":' in written and name not in body:
                self.left_out.add(f"{_KEYWORD}{name}")
                return f"the keyword {name} of schemas is left out"
        return ""

    def _learn_system(self, words: str, body: Mapping[str, Any]) -> str:
        roles = [message.get("role") for message in body.get("messages") or () if isinstance(message, dict)]
        if "system" in self.left_out or "system" not in roles or not _SYSTEM_ROLE.search(words):
            return ""
        self.left_out.add("system")
        return "the instructions are a part of the first message"

    def _cleaned(self, value: Any, keywords: list[str]) -> Any:
        """Return a part of a body. Its schemas lose the refused keywords, and its tools lose a refused `strict`."""
        if isinstance(value, list):
            return [self._cleaned(each, keywords) for each in value]
        if not isinstance(value, dict):
            return value
        found = {}
        for name, each in value.items():
            if name == "strict" and "strict" in self.left_out:
                continue
            is_schema = name in ("parameters", "input_schema", "schema")
            found[name] = without_keywords(each, keywords) if is_schema else self._cleaned(each, keywords)
        return found


_known: WeakValueDictionary[tuple[str, str, str], Capabilities] = WeakValueDictionary()


def capabilities_of(dialect: str, base_url: str | None, model: str) -> Capabilities:
    """Return the detected limits of a model at a server.

    All callers share one object for the same arguments, while at least one caller has a reference to the object.

    Args:
        dialect: The name of the API.
        base_url: The address of the server; None for the provider's own server.
        model: The provider's name of the model.
    """
    key = (dialect, base_url or "", model)
    found = _known.get(key)
    if found is None:
        found = _known[key] = Capabilities()
    return found


def _names(detail: ErrorDetail) -> set[str]:
    """Return the names that an error quotes, and the parts of quoted paths such as `tools[0].strict`."""
    found = set(detail.names)
    for name in detail.names:
        found |= {part for part in re.split(r"[.\[\]]+", name) if part and not part.isdigit()}
    return found


def _room(words: str) -> tuple[int, int] | None:
    """Return the size of the context and the size of the input, in tokens; None if the text does not have both."""
    if (total := _SUM.search(words)) is not None:
        return _whole(total[3]), _whole(total[1])
    window, taken = _WINDOW.search(words), _PROMPT_TOKENS.search(words)
    if window is None or taken is None:
        return None
    return _whole(window[1]), _whole(next(group for group in taken.groups() if group))


def _whole(text: str) -> int:
    return int(text.replace(",", "")[:12])


def _has_strict(body: Mapping[str, Any]) -> bool:
    return '"strict":' in json.dumps(
        {name: body.get(name) for name in ("tools", "response_format", "text")}, default=str
    )


def _extras(body: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of the opaque fields in the earlier answers of a body."""
    for message in body.get("messages") or ():
        if isinstance(message, dict) and message.get("role") == "assistant":
            yield from (name for name in message if name not in ("role", "content", "tool_calls"))
            for call in message.get("tool_calls") or ():
                yield from (name for name in call if name not in ("id", "type", "function", "index"))
