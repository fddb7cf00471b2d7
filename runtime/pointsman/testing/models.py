"""A model with prepared replies that records its requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from pointsman.errors import ConfigurationError
from pointsman.ports.model import ModelReply, ModelRequest, ToolCall
from pointsman_schemas.events import Usage
from pointsman_schemas.strict_json import as_json_value, compact_json

__all__ = ["Script", "ScriptedModel", "text_reply", "tool_reply"]

Script: TypeAlias = ModelReply | Exception | Callable[[ModelRequest], ModelReply]


class ScriptedModel:
    """A model that gives its replies in order. `requests` are the received calls.

    If no reply is left, a call raises a `ConfigurationError`, which fails the attempt at once.

    Args:
        script: The replies. Each element is a reply, an exception to raise, or a function of the request.
    """

    provider = "scripted"
    name = "scripted"
    account = ""

    def __init__(self, *script: Script) -> None:
        self._script = list(script)
        self.requests: list[ModelRequest] = []
        self.closed = False

    async def complete(self, request: ModelRequest) -> ModelReply:
        """Record the request and give the next reply, or raise the next exception.

        Args:
            request: The request.

        Returns:
            The reply.

        Raises:
            ConfigurationError: No reply is left.
        """
        self.requests.append(request)
        if not self._script:
            raise ConfigurationError(
                f"the scripted model has no reply for call {len(self.requests)} (replies: {len(self.requests) - 1}); "
                "add a reply, or find the cause of the further call"
            )
        step = self._script.pop(0)
        if isinstance(step, Exception):
            raise step
        return step(request) if callable(step) else step

    async def close(self) -> None:
        """Set `closed`."""
        self.closed = True


def text_reply(answer: object, *, finish: str = "stop", tokens: tuple[int, int] = (10, 5)) -> ModelReply:
    """Return a reply that is a text or structured output.

    Args:
        answer: A text; or, for structured output, JSON data or a pydantic model.
        finish: The reason for the end of the reply. Default: `stop`.
        tokens: The numbers of input tokens and output tokens. Default: 10 and 5.

    Returns:
        The reply.
    """
    usage = Usage(calls=1, input_tokens=tokens[0], output_tokens=tokens[1])
    if isinstance(answer, str):
        return ModelReply(text=answer, usage=usage, finish=finish, model="scripted")
    data = as_json_value(answer)
    return ModelReply(text=compact_json(data).decode(), data=data, usage=usage, finish=finish, model="scripted")


def tool_reply(*calls: tuple[str, object], tokens: tuple[int, int] = (10, 5)) -> ModelReply:
    """Return a reply that calls tools.

    Args:
        calls: The name of each tool, and its arguments as JSON data, or as a text that is sent unchanged.
        tokens: The numbers of input tokens and output tokens. Default: 10 and 5.

    Returns:
        The reply.
    """
    usage = Usage(calls=1, input_tokens=tokens[0], output_tokens=tokens[1])
    wanted = tuple(
        ToolCall(
            f"call_{number}", name, given if isinstance(given, str) else compact_json(as_json_value(given)).decode()
        )
        for number, (name, given) in enumerate(calls, 1)
    )
    return ModelReply(text="", calls=wanted, usage=usage, finish="tool_calls", model="scripted")
