"""A model provider of our own on loopback: it speaks the wire formats of OpenAI and Anthropic, and does as it is told.

It answers from rules that match the prompt, then from a queue; it keeps every call; and like the real ones it turns
down a conversation whose tool calls and results do not pair.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self, TypeAlias


@dataclass(frozen=True)
class Answer:
    """One answer of the provider. `finish` is OpenAI's word for how it ended; `usage` None leaves the counts out.

    `data` is structured output in the provider's own way. `status` other than 200 sends an error with `text` as its
    message. `drop` closes the connection after that many bytes of the body. `body` is sent as it is.
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
    body: bytes | None = None
    delay: float = 0.0


Answering: TypeAlias = Answer | Callable[["Call"], Answer]


@dataclass(frozen=True)
class Call:
    """One request the provider got."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def prompt(self) -> str:
        """Everything it says, system prompt included, in one text."""
        said = [self.body.get("system", "")]
        for message in self.body.get("messages", ()):
            content = message.get("content")
            said += [content] if isinstance(content, str) else [_text(block) for block in content or ()]
        return "\n".join(said)

    @property
    def tools(self) -> list[str]:
        return [tool.get("name") or tool["function"]["name"] for tool in self.body.get("tools", ())]


@dataclass
class FakeProvider:
    """`async with FakeProvider(answer, answer) as provider:` and point an SDK at `provider.url`."""

    queue: deque[Answering] = field(default_factory=deque)
    calls: list[Call] = field(default_factory=list)
    _rules: list[tuple[str, Answering]] = field(default_factory=list)
    _server: asyncio.Server | None = None
    _connections: set[asyncio.Task[None]] = field(default_factory=set)

    @classmethod
    def saying(cls, *answers: Answering) -> Self:
        return cls(deque(answers))

    def when(self, text: str, answer: Answering) -> None:
        """Give `answer` to every prompt that contains `text`, before the queue is looked at."""
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
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        try:
            while (call := await _read(reader)) is not None:
                if not await self._answer(call, writer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _answer(self, call: Call, writer: asyncio.StreamWriter) -> bool:
        self.calls.append(call)
        answer = self._choose(call)
        if answer.delay:
            await asyncio.sleep(answer.delay)
        body = answer.body if answer.body is not None else json.dumps(_body(call, answer)).encode()
        lines = [f"HTTP/1.1 {answer.status} {_phrase(answer.status)}", "content-type: application/json"]
        lines += [f"content-length: {len(body)}", *(f"{name}: {value}" for name, value in answer.headers)]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n")
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


def unpaired(call: Call) -> str:
    """Why the providers would turn this conversation down, or nothing."""
    waiting: list[str] = []
    for message in call.body.get("messages", ()):
        called, answered = _calls_and_results(message)
        for result in answered:
            if result not in waiting:
                return f"the result {result} has no call"
            waiting.remove(result)
        if waiting and (called or not answered):
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
