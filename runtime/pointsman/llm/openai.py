"""OpenAI's chat completions, and every server that speaks them: one call, one reply, no retry."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pointsman.errors import ConfigurationError, ModelError
from pointsman.llm.failures import from_connection, from_status, from_unreadable, said_in
from pointsman.llm.prices import load_sdk, priced
from pointsman.llm.reading import strict_json
from pointsman.ports import ModelReply, ModelRequest, ToolCall, Turn
from pointsman_schemas.events import Usage

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from openai.types import CompletionUsage
    from openai.types.chat import ChatCompletion

__all__ = ["OpenAIModel"]

_FINISH = {
    "stop": "stop",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "content_filter": "refusal",
}


class OpenAIModel:
    """A model behind `base_url`, or `OPENAI_BASE_URL`, or OpenAI's own. `timeout` in seconds bounds a whole call.

    The key is `api_key` or `OPENAI_API_KEY`; a server of one's own that needs none gets none.
    """

    provider = "openai"

    def __init__(
        self, name: str, *, api_key: str | None = None, base_url: str | None = None, timeout: float = 120.0
    ) -> None:
        self.name = name
        self._base_url = base_url or os.environ.get("OPENAI_BASE_URL") or None
        self._key = api_key or os.environ.get("OPENAI_API_KEY") or ("none" if self._base_url else "")
        self._timeout = timeout
        self._sdk: ModuleType | None = None
        self._client: AsyncOpenAI | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        if not self._key:
            raise ConfigurationError(
                f"the model openai:{name} needs a key and OPENAI_API_KEY is not set; set it, or "
                "OPENAI_BASE_URL for a server of your own, or use the model `offline`"
            )

    async def complete(self, request: ModelRequest) -> ModelReply:
        if self._sdk is None:
            self._sdk = await load_sdk("openai")
        sdk: Any = self._sdk
        client = self._connected(sdk)
        try:
            async with asyncio.timeout(self._timeout):
                completion = await client.chat.completions.create(**_body(request, request.model or self.name))
        except sdk.APIStatusError as error:
            failure = from_status(
                self.provider,
                error.status_code,
                said_in(error.body) or error.message,
                error.response.headers,
                self._key,
            )
            if error.code == "insufficient_quota":  # a 429 that no waiting ends
                failure.retryable = False
            raise failure from None
        except (sdk.APIConnectionError, TimeoutError) as error:
            raise from_connection(self.provider, error) from None
        except (sdk.APIError, json.JSONDecodeError) as error:
            raise from_unreadable(self.provider, type(error).__name__) from None
        return self._reply(completion, request)

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def _connected(self, sdk: Any) -> AsyncOpenAI:
        """The client of the running event loop: a pool of connections does not outlive its loop."""
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            self._client = sdk.AsyncOpenAI(
                api_key=self._key, base_url=self._base_url, max_retries=0, timeout=self._timeout
            )
            self._loop = loop
        assert self._client is not None
        return self._client

    def _reply(self, completion: ChatCompletion, request: ModelRequest) -> ModelReply:
        choices = getattr(completion, "choices", None)
        if not choices:
            raise self._error_in_200(completion)
        choice, message = choices[0], choices[0].message
        if choice.finish_reason is None:
            raise from_unreadable(self.provider, "a reply that does not say how it ended")
        calls = tuple(
            ToolCall(call.id, call.function.name, call.function.arguments or "{}")
            for call in message.tool_calls or ()
            if call.type == "function"
        )
        finish = _FINISH.get(choice.finish_reason, "stop")
        refusal = getattr(message, "refusal", None)
        if refusal:
            finish = "refusal"
        elif calls and finish == "stop":
            finish = "tool_calls"  # several compatible servers say `stop` here
        text = refusal or message.content or ""
        return ModelReply(
            text=text,
            calls=calls,
            data=strict_json(text) if request.output_schema is not None and finish == "stop" else None,
            usage=priced(self.provider, completion.model or self.name, _usage(completion.usage)),
            finish=finish,
            model=completion.model or self.name,
            id=completion.id or "",
        )

    def _error_in_200(self, completion: ChatCompletion) -> ModelError:
        """Gateways before a model answer 200 with an `error` object when the model behind them failed."""
        error = (getattr(completion, "model_extra", None) or {}).get("error")
        if isinstance(error, Mapping) and isinstance(code := error.get("code"), int) and code >= 400:
            return from_status(self.provider, code, said_in({"error": error}), {}, self._key)
        return from_unreadable(self.provider, "no choices")


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
