"""A fake model provider on loopback that follows a script, in the wire formats of OpenAI and Anthropic.

It answers from rules that match the prompt, else from a queue, and records every call. Like real providers, it refuses
a conversation in which a tool call has no result.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http import HTTPStatus
from itertools import takewhile
from types import TracebackType
from typing import Any, Self, TypeAlias

from support.servers import close_server


@dataclass(frozen=True)
class Answer:
    """One answer of the provider. `finish` is OpenAI's finish reason. `usage=None` omits the token counts.

    `data` is structured output in the provider's format. With a `status` other than 200, an error is sent with `text`
    as its message. `drop` closes the connection after that many bytes of the body. `error` is sent in the middle of a
    stream. With `unended`, the stream stops before its end marker. `body` is sent unchanged. If `alive` is set, only
    `alive` is sent, repeatedly.
    """

    text: str = ""
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()
    data: dict[str, Any] | None = None
    finish: str = ""
    refusal: str = ""
    usage: tuple[int, int] | None = (11, 7)
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    drop: int | None = None
    error: dict[str, Any] | None = None
    unended: bool = False
    body: bytes | None = None
    alive: bytes = b""
    delay: float = 0.0


Answering: TypeAlias = Answer | Callable[["Call"], Answer]


@dataclass(frozen=True)
class Call:
    """One request that the provider received."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def prompt(self) -> str:
        """Return the whole text of the request, including the system prompt."""
        said = [self.body.get("system", "") or self.body.get("instructions", "")]
        for message in self.body.get("messages") or self.body.get("input") or ():
            content = message.get("content") or message.get("output")
            said += [content] if isinstance(content, str) else [_text(block) for block in content or ()]
        return "\n".join(said)

    @property
    def tools(self) -> list[str]:
        return [tool.get("name") or tool["function"]["name"] for tool in self.body.get("tools", ())]


@dataclass
class FakeProvider:
    """Use `async with FakeProvider(answer, answer) as provider:` and configure `provider.url` as an SDK's base URL."""

    queue: deque[Answering] = field(default_factory=deque)
    calls: list[Call] = field(default_factory=list)
    _rules: list[tuple[str, Answering]] = field(default_factory=list)
    _server: asyncio.Server | None = None
    _connections: set[asyncio.Task[None]] = field(default_factory=set)

    @classmethod
    def saying(cls, *answers: Answering) -> Self:
        return cls(deque(answers))

    def when(self, text: str, answer: Answering) -> None:
        """Answer every prompt that contains `text` with `answer`. Rules take precedence over the queue."""
        self._rules.append((text, answer))

    @property
    def openai_url(self) -> str:
        return f"{self.url}/v1"

    @property
    def url(self) -> str:
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()
        return f"http://{host}:{port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        await close_server(self._server, self._connections)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        try:
            while (call := await _read(reader)) is not None:
                if not await self._answer(call, writer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        except asyncio.CancelledError:
            writer.transport.abort()  # the rest of an answer is not sent
        finally:
            writer.close()

    async def _answer(self, call: Call, writer: asyncio.StreamWriter) -> bool:
        self.calls.append(call)
        answer = self._choose(call)
        if answer.delay:
            await asyncio.sleep(answer.delay)
        streamed = bool(call.body.get("stream")) and answer.status == 200
        whole = _body(call, answer)
        if (
            streamed
            and call.path.endswith("/completions")
            and not (call.body.get("stream_options") or {}).get("include_usage")
        ):
            whole.pop("usage", None)  # streamed usage is sent only on request
        sent = stream_of(call.path, whole, answer.error) if streamed else json.dumps(whole).encode()
        if streamed and answer.unended:
            sent = b"".join(event + b"\n\n" for event in takewhile(_before_its_end, sent.split(b"\n\n")))
        body = answer.body if answer.body is not None else sent
        kind = "text/event-stream" if streamed else "application/json"
        lines = [f"HTTP/1.1 {answer.status} {_phrase(answer.status)}", f"content-type: {kind}"]
        lines += [
            f"content-length: {_ENDLESS if answer.alive else len(body)}",
            *(f"{name}: {value}" for name, value in answer.headers),
        ]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n")
        while answer.alive:
            writer.write(answer.alive)
            await writer.drain()
            await asyncio.sleep(0.02)
        writer.write(body if answer.drop is None else body[: answer.drop])
        await writer.drain()
        return answer.drop is None

    def _choose(self, call: Call) -> Answer:
        if problem := unpaired(call):
            return Answer(problem, status=400)
        chosen: Answering | None = next((answer for text, answer in self._rules if text in call.prompt), None)
        if chosen is None and self.queue:
            chosen = self.queue.popleft()
        if chosen is None:
            return Answer("the test has no answer for this prompt", status=400)
        return chosen if isinstance(chosen, Answer) else chosen(call)


async def _read(reader: asyncio.StreamReader) -> Call | None:
    head = await reader.readuntil(b"\r\n\r\n")
    first, *rest = head.decode("latin-1").strip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Call(first.split(" ")[1], headers, json.loads(body or b"{}"))


def _body(call: Call, answer: Answer) -> dict[str, Any]:
    anthropic = call.path.endswith("/messages")
    if answer.status != 200:
        error: dict[str, Any] = {"type": "error_of_the_test", "message": answer.text}
        return {"type": "error", "error": error} if anthropic else {"error": error}
    if call.path.endswith("/responses"):
        return _response(call, answer)
    return _anthropic(call, answer) if anthropic else _openai(call, answer)


def _openai(call: Call, answer: Answer) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.text or None}
    if answer.data is not None:
        message["content"] = json.dumps(answer.data)
    if answer.refusal:
        message["refusal"] = answer.refusal
    if answer.calls:
        message["tool_calls"] = [
            {"id": f"call_{n}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
            for n, (name, arguments) in enumerate(answer.calls)
        ]
    finish = answer.finish or ("tool_calls" if answer.calls else "stop")
    body: dict[str, Any] = {
        "id": "chatcmpl-test",
        "object": "chat.completion",
        "created": 1,
        "model": call.body.get("model", ""),
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
    }
    if answer.usage is not None:
        read, written = answer.usage
        body["usage"] = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
    return body


_STOP = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens", "content_filter": "refusal"}


def _anthropic(call: Call, answer: Answer) -> dict[str, Any]:
    content: list[dict[str, Any]] = [{"type": "text", "text": answer.text}] if answer.text else []
    calls = list(answer.calls)
    if answer.data is not None:
        calls.append((call.tools[-1], answer.data))
    content += [
        {"type": "tool_use", "id": f"toolu_{n}", "name": name, "input": arguments}
        for n, (name, arguments) in enumerate(calls)
    ]
    finish = answer.finish or ("tool_calls" if calls else "stop")
    body: dict[str, Any] = {
        "id": "msg_test",
        "type": "message",
        "role": "assistant",
        "model": call.body.get("model", ""),
        "content": content,
        "stop_reason": "refusal" if answer.refusal else _STOP[finish],
        "stop_sequence": None,
    }
    if answer.refusal:
        body["stop_details"] = {"type": "refusal", "category": None, "explanation": answer.refusal}
    if answer.usage is not None:
        read, written = answer.usage
        body["usage"] = {"input_tokens": read, "output_tokens": written}
    return body


def _response(call: Call, answer: Answer) -> dict[str, Any]:
    text = json.dumps(answer.data) if answer.data is not None else answer.text
    said: dict[str, Any] | None = {"type": "refusal", "refusal": answer.refusal} if answer.refusal else None
    if text and not said:
        said = {"type": "output_text", "text": text, "annotations": []}
    output: list[dict[str, Any]] = []
    if said:
        output.append({"type": "message", "id": "msg_0", "role": "assistant", "status": "completed", "content": [said]})
    output += [
        {"type": "function_call", "id": f"fc_{n}", "call_id": f"call_{n}", "name": name, "arguments": json.dumps(given)}
        for n, (name, given) in enumerate(answer.calls)
    ]
    reason = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(answer.finish)
    body: dict[str, Any] = {
        "id": "resp_test",
        "object": "response",
        "created_at": 1,
        "model": call.body.get("model", ""),
        "status": "incomplete" if reason else "completed",
        "incomplete_details": {"reason": reason} if reason else None,
        "error": None,
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }
    if answer.usage is not None:
        read, written = answer.usage
        body["usage"] = {
            "input_tokens": read, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": written,
            "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": read + written,
        }  # fmt: skip
    return body


# Streams: the same body as events of each provider

_ENDLESS = 10**9
_ENDS = (b"event: message_delta", b"event: response.completed", b'"finish_reason": "')


def _before_its_end(event: bytes) -> bool:
    return not any(end in event for end in _ENDS)


def stream_of(path: str, body: dict[str, Any], error: dict[str, Any] | None) -> bytes:
    """Return `body` as a stream of the provider. If given, `error` replaces the second half."""
    if path.endswith("/messages"):
        events = list(_anthropic_events(body))
    elif path.endswith("/responses"):
        events = list(_response_events(body))
    else:
        events = [("", chunk) for chunk in _openai_chunks(body)]
    if error is not None:
        events = [*events[: len(events) // 2], ("error", error)]
    lines = [(f"event: {name}\n" if name else "") + f"data: {json.dumps(data)}\n\n" for name, data in events]
    if path.endswith("/completions") and error is None:
        lines.append("data: [DONE]\n\n")
    return "".join(lines).encode()


def _openai_chunks(body: dict[str, Any]) -> Iterable[dict[str, Any]]:
    head = {"id": body["id"], "object": "chat.completion.chunk", "created": 1, "model": body["model"]}
    choice = body["choices"][0]
    message = choice["message"]

    def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        return {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    yield chunk({"role": "assistant", "content": ""})
    for name in ("content", "refusal"):
        for piece in _pieces(message.get(name) or ""):
            yield chunk({name: piece})
    for place, call in enumerate(message.get("tool_calls") or ()):
        function = call["function"]
        yield chunk({"tool_calls": [{"index": place, "id": call["id"], "type": "function",
                                     "function": {"name": function["name"], "arguments": ""}}]})  # fmt: skip
        for piece in _pieces(function["arguments"]):
            yield chunk({"tool_calls": [{"index": place, "function": {"arguments": piece}}]})
    yield chunk({}, choice["finish_reason"])
    if "usage" in body:
        yield {**head, "choices": [], "usage": body["usage"]}


def _anthropic_events(body: dict[str, Any]) -> Iterable[tuple[str, dict[str, Any]]]:
    usage = body.get("usage", {"input_tokens": 0, "output_tokens": 0})
    start = {
        **body,
        "content": [],
        "stop_reason": None,
        "usage": {**usage, "output_tokens": min(1, usage["output_tokens"])},
    }
    yield "message_start", {"type": "message_start", "message": start}
    for place, block in enumerate(body["content"]):
        empty = {**block, "text": ""} if block["type"] == "text" else {**block, "input": {}}
        yield "content_block_start", {"type": "content_block_start", "index": place, "content_block": empty}
        whole = block["text"] if block["type"] == "text" else json.dumps(block["input"])
        kind, field = ("text_delta", "text") if block["type"] == "text" else ("input_json_delta", "partial_json")
        for piece in _pieces(whole):
            yield "content_block_delta", {
                "type": "content_block_delta", "index": place, "delta": {"type": kind, field: piece},
            }  # fmt: skip
        yield "content_block_stop", {"type": "content_block_stop", "index": place}
    delta = {"stop_reason": body["stop_reason"], "stop_sequence": None}
    if "stop_details" in body:
        delta["stop_details"] = body["stop_details"]
    yield "message_delta", {"type": "message_delta", "delta": delta, "usage": usage}
    yield "message_stop", {"type": "message_stop"}


def _response_events(body: dict[str, Any]) -> Iterable[tuple[str, dict[str, Any]]]:
    number = 0

    def event(kind: str, **fields: Any) -> tuple[str, dict[str, Any]]:
        nonlocal number
        number += 1
        return kind, {"type": kind, "sequence_number": number, **fields}

    yield event("response.created", response={**body, "status": "in_progress", "output": []})
    for place, item in enumerate(body["output"]):
        for part in item.get("content", ()):
            for piece in _pieces(part.get("text", "")):
                yield event("response.output_text.delta", item_id=item["id"], output_index=place, content_index=0,
                            delta=piece, logprobs=[])  # fmt: skip
    yield event(f"response.{body['status']}", response=body)


def _pieces(text: str) -> list[str]:
    return [text[at : at + 5] for at in range(0, len(text), 5)]


def unpaired(call: Call) -> str:
    """Return the reason for which providers would refuse this conversation, or an empty string."""
    waiting: list[str] = []
    for message in call.body.get("messages") or call.body.get("input") or ():
        called, answered = _calls_and_results(message)
        for result in answered:
            if result not in waiting:
                return f"the result {result} has no call"
            waiting.remove(result)
        if waiting and (called or not answered) and message.get("type") != "function_call":
            return f"the calls {waiting} have no result"
        if len(set(called)) != len(called):
            return f"the ids {called} repeat"
        waiting += called
    return f"the calls {waiting} have no result" if waiting else ""


def _calls_and_results(message: dict[str, Any]) -> tuple[list[str], list[str]]:
    content = message.get("content")
    blocks: Iterable[dict[str, Any]] = content if isinstance(content, list) else ()
    called = [call["id"] for call in message.get("tool_calls") or ()]
    called += [block["id"] for block in blocks if block.get("type") == "tool_use"]
    called += [message["call_id"]] if message.get("type") == "function_call" else []
    if message.get("type") == "function_call_output":
        return called, [message["call_id"]]
    answered = [message["tool_call_id"]] if message.get("role") == "tool" else []
    answered += [block["tool_use_id"] for block in blocks if block.get("type") == "tool_result"]
    return called, answered


def _text(block: dict[str, Any]) -> str:
    return str(block.get("text") or block.get("content") or "")


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unofficial"
