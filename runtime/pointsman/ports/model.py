"""The port of a language model: requests, replies and tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from pydantic import JsonValue

from pointsman_schemas.events import Usage

__all__ = ["Model", "ModelReply", "ModelRequest", "ToolCall", "ToolSpec", "Turn"]


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as a model is told of it. `parameters` is the JSON Schema of its arguments, an object."""

    name: str
    description: str
    parameters: Mapping[str, JsonValue]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A model's wish to use a tool. `arguments` is the raw text it wrote, to be parsed and checked by the caller."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a conversation.

    `user` and `assistant` carry `text`; an assistant turn may carry `calls`; a `tool` turn answers the call `call_id`.
    `provider_state` is that of the reply the turn was made of: the provider needs it back with the results.
    """

    role: Literal["user", "assistant", "tool"]
    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    call_id: str = ""
    is_error: bool = False
    provider_state: Mapping[str, JsonValue] | None = None


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One model call. `output_schema` asks for a JSON object of that schema by the provider's native way.

    With `on_text` the answer is streamed, and each piece of text told to it as it comes. What was told is no answer
    before the reply is there: a stream may break off, and the call be made again.
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
    """What a model answered. `data` is the parsed structured output when a schema was asked for.

    `finish` is `stop`, `tool_calls`, `length` or `refusal`. `provider_state` is opaque data that the provider needs
    back with the next turn, such as thinking blocks and signatures; None where there is none.
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
    """A model behind a provider's API. It makes one call and never retries by itself."""

    @property
    def provider(self) -> str:
        """`openai`, `anthropic`, `offline`: the GenAI conventions' provider name."""
        ...

    @property
    def name(self) -> str:
        """The model as its provider calls it."""
        ...

    @property
    def account(self) -> str:
        """A name for the key and the server it is used at, which does not give the key away; empty without one."""
        ...

    async def complete(self, request: ModelRequest) -> ModelReply:
        """One call, one reply. A refusal or a truncated answer is a reply, too: it has used tokens; see its `finish`.

        Raises:
            ModelError: with `retryable` set for rate limits, overload, time-outs and dropped connections, and not set
                for other requests that the provider turned down, context overflow among them.
        """
        ...

    async def close(self) -> None: ...
