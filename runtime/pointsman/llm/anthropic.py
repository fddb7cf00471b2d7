"""Anthropic's messages: one call, one reply, no retry, and no span but ours."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pointsman.errors import ConfigurationError, ModelError
from pointsman.llm.errors import (
    error_detail,
    error_from_connection,
    error_from_status,
    error_from_stream_event,
    error_from_unreadable,
)
from pointsman.llm.json_extraction import parse_strict_json
from pointsman.llm.network_guard import check_allowed, resolve_base_url
from pointsman.llm.prices import load_sdk, with_cost
from pointsman.ports.model import ModelReply, ModelRequest, ToolCall, Turn
from pointsman.util.environment import variable
from pointsman_schemas.events import Usage
from pointsman_schemas.ids import derive_id

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic
    from anthropic.types import Message

__all__ = ["AnthropicModel"]

_FINISH_REASONS = {
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "pause_turn": "length",
    "refusal": "refusal",
}
"""What is said of an answer that is not whole."""


class AnthropicModel:
    """A model behind `base_url`, or `ANTHROPIC_BASE_URL`, or Anthropic's own. `timeout` in seconds bounds a whole call.

    The key is `api_key` or `ANTHROPIC_API_KEY`.
    """

    provider = "anthropic"

    def __init__(
        self, name: str, *, api_key: str | None = None, base_url: str | None = None, timeout: float = 120.0
    ) -> None:
        self.name = name
        self._base_url = resolve_base_url("anthropic", base_url)
        self._key = api_key or variable("ANTHROPIC_API_KEY") or ""
        self._timeout = timeout
        self.account = derive_id("account", self._base_url or "", self._key)[:12]
        self._sdk: ModuleType | None = None
        self._client: AsyncAnthropic | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        if not self._key:
            raise ConfigurationError(
                f"the model anthropic:{name} needs a key and ANTHROPIC_API_KEY is not set; set it, "
                "or use the model `offline`"
            )

    async def complete(self, request: ModelRequest) -> ModelReply:
        check_allowed(self.provider, self.name, self._base_url)
        if self._sdk is None:
            self._sdk = await load_sdk("anthropic")
        sdk: Any = self._sdk
        client = self._connected(sdk)
        try:
            async with asyncio.timeout(self._timeout):
                message = await self._message(client, request)
        except ModelError:
            raise
        except sdk.APIStatusError as error:
            if error.status_code < 400:  # it came inside of a stream
                raise error_from_stream_event(self.provider, error.body, self._key) from None
            said, headers = error_detail(error.body), error.response.headers
            raise error_from_status(self.provider, error.status_code, said, headers, self._key) from None
        except (sdk.APIConnectionError, TimeoutError) as error:
            raise error_from_connection(self.provider, error, self._base_url) from None
        except (sdk.APIError, json.JSONDecodeError) as error:
            raise error_from_unreadable(self.provider, type(error).__name__) from None
        return self._reply(message, request)

    async def _message(self, client: AsyncAnthropic, request: ModelRequest) -> Message:
        body = _body(request, request.model or self.name)
        if request.on_text is None:
            message: Message = await client.messages.create(**body)
            return message
        async with client.messages.stream(**body) as stream:
            try:
                async for text in stream.text_stream:
                    request.on_text(text)
                return await stream.get_final_message()
            except (json.JSONDecodeError, AssertionError):  # what the SDK says of a stream it makes no sense of
                raise error_from_unreadable(self.provider, "a stream that cannot be read") from None
            except Exception as error:
                if type(error).__module__.startswith("anthropic"):
                    raise
                failure = error_from_connection(self.provider, error)
                with suppress(AssertionError):  # it broke before it began
                    failure.usage = _usage(stream.current_message_snapshot)
                raise failure from None

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def _connected(self, sdk: Any) -> AsyncAnthropic:
        """The client of the running event loop: a pool of connections does not outlive its loop."""
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            self._client = sdk.AsyncAnthropic(
                api_key=self._key, base_url=self._base_url, max_retries=0, timeout=self._timeout, open_telemetry=False
            )
            self._loop = loop
        assert self._client is not None
        return self._client

    def _reply(self, message: Message, request: ModelRequest) -> ModelReply:
        blocks, stop = getattr(message, "content", None), getattr(message, "stop_reason", None)
        if blocks is None or stop is None:
            raise error_from_unreadable(self.provider, "a reply without content or without a reason for its end")
        text = "".join(block.text for block in blocks if block.type == "text")
        used = [block for block in blocks if block.type == "tool_use"]
        answer_tool = request.output_name if request.output_schema is not None else None
        calls = tuple(
            ToolCall(block.id, block.name, json.dumps(block.input)) for block in used if block.name != answer_tool
        )
        finish = _FINISH_REASONS.get(stop, "tool_calls" if calls else "stop")
        data = None
        if finish == "stop":
            given = next((block.input for block in used), None)
            if given is not None:
                text = json.dumps(given)
                data = parse_strict_json(text)
            elif answer_tool is not None:
                data = parse_strict_json(text)
        if finish == "refusal" and (details := getattr(message, "stop_details", None)) is not None:
            text = text or details.explanation or ""
        return ModelReply(
            text=text,
            calls=calls,
            data=data,
            usage=with_cost(self.provider, message.model or self.name, _usage(message), request.model or self.name),
            finish=finish,
            model=message.model or self.name,
            id=message.id or "",
        )


def _body(request: ModelRequest, model: str) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": model,
        "system": request.instructions,
        "messages": _messages(request.turns),
        "max_tokens": request.max_tokens,
    }
    if request.temperature is not None:
        body["extra_body"] = {"temperature": request.temperature}  # the SDK has no argument for it, the API does
    tools = [
        {"name": tool.name, "description": tool.description, "input_schema": dict(tool.parameters)}
        for tool in request.tools
    ]
    if request.output_schema is not None:
        # The answer is a tool the model must use: that takes any schema, and leaves it free to use other tools first.
        tools.append(
            {
                "name": request.output_name,
                "description": "Give the final answer.",
                "input_schema": dict(request.output_schema),
            }
        )
        body["tool_choice"] = {"type": "any"} if request.tools else {"type": "tool", "name": request.output_name}
    if tools:
        body["tools"] = tools
    return body


def _messages(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """The results of one round of calls are the blocks of one user message, as the API demands."""
    messages: list[dict[str, Any]] = []
    for turn in turns:
        role = "assistant" if turn.role == "assistant" else "user"
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"].extend(_blocks(turn))
        else:
            messages.append({"role": role, "content": _blocks(turn)})
    return messages


def _blocks(turn: Turn) -> list[dict[str, Any]]:
    if turn.role == "tool":
        return [{"type": "tool_result", "tool_use_id": turn.call_id, "content": turn.text, "is_error": turn.is_error}]
    text = [{"type": "text", "text": turn.text}] if turn.text.strip() else []
    return text + [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": _arguments(call.arguments)}
        for call in turn.calls
    ]


def _arguments(text: str) -> Mapping[str, Any]:
    value = parse_strict_json(text)
    return value if isinstance(value, dict) else {}


def _usage(message: Message) -> Usage:
    """Tokens read from and written to the provider's cache are input too."""
    usage = getattr(message, "usage", None)
    if usage is None:
        return Usage(calls=1)
    counted = (
        getattr(usage, name, None) or 0
        for name in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    )
    return Usage(calls=1, input_tokens=sum(counted), output_tokens=usage.output_tokens or 0)
