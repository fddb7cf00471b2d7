"""OpenAI's chat completions, and every server that speaks them: one call, one reply, no retry."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

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
    from openai import AsyncOpenAI
    from openai.types import CompletionUsage
    from openai.types.chat import ChatCompletion

__all__ = ["OpenAIModel", "OpenAIServer"]

T = TypeVar("T")

_FINISH_REASONS = {"length": "length", "content_filter": "refusal"}
"""What is said of an answer that is not whole. Of one that is, several compatible servers say `stop` whatever it is."""


class OpenAIServer:
    """A model of a server that speaks OpenAI's API: at `base_url`, or `OPENAI_BASE_URL`, or OpenAI's own.

    The key is `api_key` or `OPENAI_API_KEY`; a server of one's own that needs none gets none. `timeout` in seconds
    bounds a whole call.
    """

    provider = "openai"

    def __init__(
        self, name: str, *, api_key: str | None = None, base_url: str | None = None, timeout: float = 120.0
    ) -> None:
        self.name = name
        self._base_url = resolve_base_url("openai", base_url)
        self._key = api_key or variable("OPENAI_API_KEY") or ""
        self._timeout = timeout
        self.account = derive_id("account", self._base_url or "", self._key)[:12]
        self._sdk: ModuleType | None = None
        self._client: AsyncOpenAI | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        if not self._key and self._base_url is None:
            raise ConfigurationError(
                f"the model openai:{name} needs a key and OPENAI_API_KEY is not set; set it, or "
                "OPENAI_BASE_URL for a server of your own, or use the model `offline`"
            )

    async def run_call(self, call: Callable[[AsyncOpenAI], Awaitable[T]]) -> T:
        """What `call` returns within the time there is; whatever it raises is a `ModelError`."""
        check_allowed(self.provider, self.name, self._base_url)
        if self._sdk is None:
            self._sdk = await load_sdk("openai")
        sdk: Any = self._sdk
        client = self._connected(sdk)
        try:
            async with asyncio.timeout(self._timeout):
                return await call(client)
        except ModelError:
            raise
        except sdk.APIStatusError as error:
            said = error_detail(error.body)
            if error.code == "context_length_exceeded":
                said = f"{said} ({error.code})"
            failure = error_from_status(self.provider, error.status_code, said, error.response.headers, self._key)
            if error.code == "insufficient_quota":  # a 429 that no waiting ends
                failure.retryable = False
            raise failure from None
        except (sdk.APIConnectionError, TimeoutError) as error:
            raise error_from_connection(self.provider, error, self._base_url) from None
        except sdk.APIError as error:
            if error.body:
                raise error_from_stream_event(self.provider, error.body, self._key) from None
            raise error_from_unreadable(self.provider, type(error).__name__) from None
        except json.JSONDecodeError as error:
            raise error_from_unreadable(self.provider, type(error).__name__) from None

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def _connected(self, sdk: Any) -> AsyncOpenAI:
        """The client of the running event loop: a pool of connections does not outlive its loop."""
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            self._client = sdk.AsyncOpenAI(
                api_key=self._key or "none", base_url=self._base_url, max_retries=0, timeout=self._timeout
            )
            self._loop = loop
        assert self._client is not None
        return self._client


class OpenAIModel(OpenAIServer):
    """A model behind chat completions."""

    async def complete(self, request: ModelRequest) -> ModelReply:
        body = _body(request, request.model or self.name)
        on_text = request.on_text
        if on_text is not None:
            return self._reply(await self.run_call(lambda client: self._streamed(client, body, on_text)), request)
        return self._reply(await self.run_call(lambda client: client.chat.completions.create(**body)), request)

    async def _streamed(
        self, client: AsyncOpenAI, body: dict[str, Any], on_text: Callable[[str], None]
    ) -> ChatCompletion:
        from openai.types.chat import ChatCompletion

        stream = await client.chat.completions.create(**body, stream=True, stream_options={"include_usage": True})
        whole = _ChunkedCompletion()
        async for chunk in read_stream(self.provider, stream):
            if text := whole.add(chunk.model_dump(exclude_unset=True)):
                on_text(text)
        return ChatCompletion.construct(**whole.completion())

    def _reply(self, completion: ChatCompletion, request: ModelRequest) -> ModelReply:
        choices = getattr(completion, "choices", None)
        if not choices:
            raise self._error_in_200(completion)
        choice, message = choices[0], choices[0].message
        if choice.finish_reason is None:
            raise error_from_unreadable(self.provider, "a reply that does not say how it ended")
        calls = tuple(
            ToolCall(call.id, call.function.name, call.function.arguments or "{}")
            for call in message.tool_calls or ()
            if call.type == "function"
        )
        refusal = getattr(message, "refusal", None)
        whole = "tool_calls" if calls else "stop"
        finish = "refusal" if refusal else _FINISH_REASONS.get(choice.finish_reason, whole)
        text = refusal or message.content or ""
        model = completion.model or self.name
        return ModelReply(
            text=text,
            calls=calls,
            data=parse_strict_json(text) if request.output_schema is not None and finish == "stop" else None,
            usage=with_cost(self.provider, model, _usage(completion.usage), request.model or self.name),
            finish=finish,
            model=model,
            id=completion.id or "",
        )

    def _error_in_200(self, completion: ChatCompletion) -> ModelError:
        """Gateways before a model answer 200 with an `error` object when the model behind them failed."""
        error = (getattr(completion, "model_extra", None) or {}).get("error")
        if isinstance(error, Mapping):
            return error_from_stream_event(self.provider, error, self._key)
        return error_from_unreadable(self.provider, "no choices")


async def read_stream(provider: str, stream: AsyncIterator[T]) -> AsyncIterator[T]:
    """The events of a stream. Whatever breaks it but what the SDK has a word for is the connection."""
    import openai as sdk

    try:
        async for event in stream:
            yield event
    except Exception as error:
        known = isinstance(error, sdk.OpenAIError | ModelError | json.JSONDecodeError)
        if known and not isinstance(error, sdk.APIConnectionError):
            raise
        raise error_from_connection(provider, error) from None  # how much it cost comes last, so nobody knows


class _ChunkedCompletion:
    """A completion put together from its chunks."""

    def __init__(self) -> None:
        self._head: dict[str, Any] = {}
        self._texts: dict[str, list[str]] = {"content": [], "refusal": []}
        self._calls: dict[int, dict[str, str]] = {}
        self._finish: str | None = None
        self._has_chunks = False

    def add(self, chunk: dict[str, Any]) -> str:
        """Take a chunk in, and return the text it brought."""
        self._head |= {key: chunk[key] for key in ("id", "model", "usage") if chunk.get(key)}
        for choice in chunk.get("choices") or ():
            self._has_chunks = True
            self._finish = choice.get("finish_reason") or self._finish
            delta = choice.get("delta") or {}
            for field, parts in self._texts.items():
                parts.append(delta.get(field) or "")
            for part in delta.get("tool_calls") or ():
                call = self._calls.setdefault(part["index"], {"id": "", "name": "", "arguments": ""})
                call["id"] = part.get("id") or call["id"]
                function = part.get("function") or {}
                call["name"] += function.get("name") or ""
                call["arguments"] += function.get("arguments") or ""
            return str(delta.get("content") or "")
        return ""

    def completion(self) -> dict[str, Any]:
        """It as chat completions would have given it whole."""
        message: dict[str, Any] = {field: "".join(parts) or None for field, parts in self._texts.items()}
        message["tool_calls"] = [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": call["name"], "arguments": call["arguments"]},
            }
            for _, call in sorted(self._calls.items())
        ] or None
        choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": self._finish}
        return {
            "object": "chat.completion",
            "created": 0,
            **self._head,
            "choices": [choice] if self._has_chunks else [],
        }


def _body(request: ModelRequest, model: str) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "system", "content": request.instructions}, *map(_message, request.turns)],
        "max_completion_tokens": request.max_tokens,
    }
    if request.temperature is not None:
        body["temperature"] = request.temperature
    if request.tools:
        body["tools"] = [
            {
                "type": "function",
                "function": {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)},
            }
            for tool in request.tools
        ]
    if request.output_schema is not None:
        # Not `strict`: that refuses schemas with free-form values, which plans have. The caller checks what comes.
        body["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": request.output_name, "schema": dict(request.output_schema), "strict": False},
        }
    return body


def _message(turn: Turn) -> dict[str, Any]:
    match turn.role:
        case "tool":
            return {"role": "tool", "tool_call_id": turn.call_id, "content": turn.text}
        case "assistant" if turn.calls:
            return {
                "role": "assistant",
                "content": turn.text or None,
                "tool_calls": [
                    {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                    for call in turn.calls
                ],
            }
        case role:
            return {"role": role, "content": turn.text}


def _usage(usage: CompletionUsage | None) -> Usage:
    if usage is None:
        return Usage(calls=1)
    return Usage(calls=1, input_tokens=usage.prompt_tokens or 0, output_tokens=usage.completion_tokens or 0)
