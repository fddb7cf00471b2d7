"""OpenAI's responses: one call, one reply, no retry, and nothing stored there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pointsman.llm.errors import error_from_stream_event, error_from_unreadable
from pointsman.llm.json_extraction import parse_strict_json
from pointsman.llm.openai import OpenAIServer, read_stream
from pointsman.llm.prices import with_cost
from pointsman.ports.model import ModelReply, ModelRequest, ToolCall, Turn
from pointsman_schemas.events import Usage

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from openai.types.responses import Response

__all__ = ["OpenAIResponsesModel"]


class OpenAIResponsesModel(OpenAIServer):
    """A model behind responses. The conversation is sent whole each time, as the other adapters do."""

    async def complete(self, request: ModelRequest) -> ModelReply:
        body = _body(request, request.model or self.name)
        on_text = request.on_text
        if on_text is not None:
            return self._reply(await self.run_call(lambda client: self._streamed(client, body, on_text)), request)
        return self._reply(await self.run_call(lambda client: client.responses.create(**body)), request)

    async def _streamed(self, client: AsyncOpenAI, body: dict[str, Any], on_text: Callable[[str], None]) -> Response:
        stream = await client.responses.create(**body, stream=True)
        async for event in read_stream(self.provider, stream):
            match event.type:
                case "response.output_text.delta":
                    on_text(event.delta)
                case "error":
                    raise error_from_stream_event(self.provider, event.model_dump(exclude={"type"}), self._key)
                case "response.completed" | "response.incomplete" | "response.failed":
                    response: Response = event.response
                    return response
                case _:
                    pass
        raise error_from_unreadable(self.provider, "a stream without an end")

    def _reply(self, response: Response, request: ModelRequest) -> ModelReply:
        status, output = getattr(response, "status", None), getattr(response, "output", None)
        if (error := getattr(response, "error", None)) is not None:
            failure = error_from_stream_event(
                self.provider, error if isinstance(error, dict) else error.model_dump(), self._key
            )
            failure.usage = _usage(response)
            raise failure
        if output is None or status not in ("completed", "incomplete"):
            raise error_from_unreadable(self.provider, f"a response of status {status!r}")
        texts: list[str] = []
        refusals: list[str] = []
        calls: list[ToolCall] = []
        for item in output:
            if item.type == "function_call":
                calls.append(ToolCall(item.call_id, item.name, item.arguments or "{}"))
            elif item.type == "message":
                texts += [part.text for part in item.content if part.type == "output_text"]
                refusals += [part.refusal for part in item.content if part.type == "refusal"]
        details = getattr(response, "incomplete_details", None)
        if refusals or (details is not None and details.reason == "content_filter"):
            finish = "refusal"
        elif status == "incomplete":
            finish = "length"
        else:
            finish = "tool_calls" if calls else "stop"
        text = "".join(refusals) or "".join(texts)
        model = response.model or self.name
        return ModelReply(
            text=text,
            calls=tuple(calls) if finish == "tool_calls" else (),
            data=parse_strict_json(text) if request.output_schema is not None and finish == "stop" else None,
            usage=with_cost(self.provider, model, _usage(response), request.model or self.name),
            finish=finish,
            model=model,
            id=response.id or "",
        )


def _body(request: ModelRequest, model: str) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": model,
        "instructions": request.instructions,
        "input": list(_items(request.turns)),
        "max_output_tokens": request.max_tokens,
        "store": False,
    }
    if request.temperature is not None:
        body["temperature"] = request.temperature
    if request.tools:
        body["tools"] = [
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": dict(tool.parameters),
                "strict": False,
            }
            for tool in request.tools
        ]
    if request.output_schema is not None:
        schema = {"type": "json_schema", "name": request.output_name, "schema": dict(request.output_schema)}
        body["text"] = {"format": {**schema, "strict": False}}
    return body


def _items(turns: Sequence[Turn]) -> Iterator[dict[str, Any]]:
    for turn in turns:
        if turn.role == "tool":
            yield {"type": "function_call_output", "call_id": turn.call_id, "output": turn.text}
            continue
        if turn.text:
            yield {"role": turn.role, "content": turn.text}
        for call in turn.calls:
            yield {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments}


def _usage(response: Response) -> Usage:
    usage = getattr(response, "usage", None)
    if usage is None:
        return Usage(calls=1)
    return Usage(calls=1, input_tokens=usage.input_tokens or 0, output_tokens=usage.output_tokens or 0)
