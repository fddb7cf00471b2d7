"""Record prompts, answers, tool arguments and the texts of errors, if a setting turns this on.

| `POINTSMAN_CAPTURE_CONTENT` | `OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT` | On the spans and in the logs |
|---|---|---|
| `none` (default) | `false`, `no_content`, `event_only` | no content; of errors only the types, see `error_content` |
| `redacted` | `redacted` | all content, without strings that resemble a key, token or password |
| `full` | `true`, `span_only`, `span_and_event`, `full` | all content, unchanged |

If both variables are set, `POINTSMAN_CAPTURE_CONTENT` is used. `event_only` asks for content in events and not on
spans. Pointsman writes no such events, so the value means `none`. The functions return attributes of the GenAI
conventions, as JSON text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

from pydantic import JsonValue

from pointsman.ports.model import ModelReply, ModelRequest, Turn
from pointsman.settings import Settings
from pointsman.telemetry import error_content
from pointsman.telemetry.logs import get_logger
from pointsman.telemetry.semconv import Attributes
from pointsman.util.environment import variable
from pointsman.util.scrubber import scrub_json

__all__ = [
    "Mode",
    "capture_enabled",
    "configure",
    "mode_of",
    "reply_attributes",
    "request_attributes",
    "tool_attributes",
]

Mode: TypeAlias = Literal["none", "redacted", "full"]

_CAPTURE_VARIABLE: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_MODES: Final[Mapping[str, Mode]] = {
    "": "none",
    "none": "none",
    "false": "none",
    "no_content": "none",
    "event_only": "none",
    "redacted": "redacted",
    "true": "full",
    "span_only": "full",
    "span_and_event": "full",
    "full": "full",
}
_NO_ATTRIBUTES: Final[Attributes] = {}

_log = get_logger(__name__)
_mode: Mode = "none"
_emails = False


def configure(mode: Mode, *, emails: bool = False) -> None:
    """Set the mode of this process. With `emails`, the mode `redacted` also hides e-mail addresses."""
    global _mode, _emails
    _mode, _emails = mode, emails
    error_content.configure(visible=mode != "none")


def mode_of(settings: Settings) -> Mode:
    """Return the mode of the settings. If they have none, use OpenTelemetry's variable. An unknown value is `none`."""
    if settings.capture_content is not None:
        return settings.capture_content
    asked = (variable(_CAPTURE_VARIABLE) or "").lower()
    if asked not in _MODES:
        _log.warning(
            "capture_mode_unknown", variable=_CAPTURE_VARIABLE, seen=asked, expected=", ".join(filter(None, _MODES))
        )
    return _MODES.get(asked, "none")


def capture_enabled() -> bool:
    """Return True if the mode is not `none`. Hot paths call this before they collect content."""
    return _mode != "none"


def request_attributes(request: ModelRequest) -> Attributes:
    """Return the attributes of a request to a model: instructions, messages and tool definitions."""
    if _mode == "none":
        return _NO_ATTRIBUTES
    return {
        "gen_ai.system_instructions": _text([{"type": "text", "content": request.instructions}]),
        "gen_ai.input.messages": _text([_message(turn) for turn in request.turns]),
        "gen_ai.tool.definitions": _text([
            {"type": "function", "name": tool.name, "description": tool.description,
             "parameters": dict(tool.parameters)}
            for tool in request.tools
        ]) if request.tools else None,
    }  # fmt: skip


def reply_attributes(reply: ModelReply) -> Attributes:
    """Return the attributes of a model's answer."""
    if _mode == "none":
        return _NO_ATTRIBUTES
    text = reply.text or (json.dumps(reply.data, ensure_ascii=False) if reply.data is not None else "")
    message = _message(Turn("assistant", text, reply.calls))
    return {"gen_ai.output.messages": _text([{**message, "finish_reason": reply.finish}])}


def tool_attributes(arguments: JsonValue, result: JsonValue) -> Attributes:
    """Return the attributes of a tool call: its arguments and its result."""
    if _mode == "none":
        return _NO_ATTRIBUTES
    return {"gen_ai.tool.call.arguments": _text(_parse_json(arguments)), "gen_ai.tool.call.result": _text(result)}


def _message(turn: Turn) -> dict[str, Any]:
    if turn.role == "tool":
        parts: list[JsonValue] = [
            {"type": "tool_call_response", "id": turn.call_id, "response": _parse_json(turn.text)}
        ]
    else:
        parts = [{"type": "text", "content": turn.text}] if turn.text else []
        parts += [
            {"type": "tool_call", "id": call.id, "name": call.name, "arguments": _parse_json(call.arguments)}
            for call in turn.calls
        ]
    return {"role": turn.role, "parts": parts}


def _parse_json(value: JsonValue) -> JsonValue:
    """Parse a JSON object or array, so that its values are scrubbed by their keys; return other text unchanged."""
    if not isinstance(value, str):
        return value
    try:
        parsed: JsonValue = json.loads(value)
    except (ValueError, RecursionError):
        return value
    return parsed if isinstance(parsed, dict | list) else value


def _text(value: JsonValue) -> str:
    return json.dumps(scrub_json(value, emails=_emails) if _mode == "redacted" else value, ensure_ascii=False)
