"""The port of a language model: requests, replies and tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from pydantic import JsonValue

from pointsman_schemas.events import Usage

__all__ = ["Attachment", "Model", "ModelReply", "ModelRequest", "ToolCall", "ToolSpec", "Turn"]


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """The description of a tool for a model.

    Attributes:
        name: The name.
        description: The description.
        parameters: The JSON Schema of the arguments, which are an object.
    """

    name: str
    description: str
    parameters: Mapping[str, JsonValue]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A model's request to run a tool.

    Attributes:
        id: The id of the call.
        name: The tool's name.
        arguments: The raw text of the arguments, which the caller parses and checks.
    """

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file that a model reads as a separate block.

    Attributes:
        name: The name of the file.
        media_type: The media type, such as `image/png`.
        data: The content.
    """

    name: str
    media_type: str
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a conversation.

    Attributes:
        role: The role of the sender.
        text: The text; for a `tool` turn, the tool's result.
        calls: The tool calls of an `assistant` turn.
        call_id: The id of the call that a `tool` turn answers.
        is_error: True if the tool of a `tool` turn failed.
        attachments: The files of a `user` turn.
        provider_state: The `provider_state` of the reply that became this `assistant` turn. The provider requires it in
            the request that sends the tool results.
    """

    role: Literal["user", "assistant", "tool"]
    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    call_id: str = ""
    is_error: bool = False
    attachments: tuple[Attachment, ...] = ()
    provider_state: Mapping[str, JsonValue] | None = None


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One model call.

    Attributes:
        model: The provider's name for the model; empty for `Model.name`.
        instructions: The system prompt.
        turns: The conversation.
        tools: The tools that the model may call.
        output_schema: The JSON Schema of the answer, for the structured output of the provider. The answer must be an
            object. None for an answer as text.
        output_name: The name of `output_schema`.
        max_tokens: The maximum number of tokens of the answer.
        temperature: The temperature; None for the provider's default.
        on_text: Called with each piece of text of a streamed answer; None to disable streaming. The pieces are only a
            preview of the answer: the stream may break off, and a repeated call begins the text again.
    """

    model: str
    instructions: str
    turns: tuple[Turn, ...]
    tools: tuple[ToolSpec, ...] = ()
    output_schema: Mapping[str, JsonValue] | None = None
    output_name: str = "answer"
    max_tokens: int = 4096
    temperature: float | None = None
    on_text: Callable[[str], None] | None = None


@dataclass(frozen=True, slots=True)
class ModelReply:
    """The answer of a model.

    Attributes:
        text: The text.
        calls: The tool calls.
        data: The parsed structured output, if a schema was requested.
        usage: The calls, tokens and cost.
        finish: `stop`, `tool_calls`, `length` or `refusal`.
        model: The provider's name for the model that answered.
        id: The provider's id of the answer.
        provider_state: Opaque data that the provider requires in the next turn, such as thinking blocks and
            signatures; None if the provider requires no data.
    """

    text: str
    calls: tuple[ToolCall, ...] = ()
    data: JsonValue = None
    usage: Usage = Usage()
    finish: str = "stop"
    model: str = ""
    id: str = ""
    provider_state: Mapping[str, JsonValue] | None = None


class Model(Protocol):
    """A model behind a provider's API. `complete` makes one call to the provider, and never repeats it."""

    @property
    def provider(self) -> str:
        """Return the provider's name by the GenAI conventions: `openai`, `anthropic` or `offline`."""
        ...

    @property
    def name(self) -> str:
        """Return the model's name at its provider."""
        ...

    @property
    def account(self) -> str:
        """Return a name for the pair of API key and server. The name does not reveal the key.

        Workers share the rate limits of a model if their accounts are the same.

        Returns:
            The name; empty without a key.
        """
        ...

    async def complete(self, request: ModelRequest) -> ModelReply:
        """Make one call. A refusal and a truncated answer are replies, too, because the call used tokens; see `finish`.

        Args:
            request: The request.

        Returns:
            The reply.

        Raises:
            ModelError: the provider failed. `retryable` is True for rate limits, overload, time-outs and dropped
                connections. `retryable` is False for other refused requests, including context overflow.
        """
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...
