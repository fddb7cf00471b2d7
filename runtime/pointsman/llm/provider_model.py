"""Call a model over HTTP with its provider's SDK. Each call gets one reply, without a retry.

A `Dialect` for each API writes the requests and reads the replies.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

from pointsman.errors import ConfigurationError, ModelError, ModelReplyError
from pointsman.llm.attachments import NATIVE_TYPES
from pointsman.llm.capabilities import Capabilities, capabilities_of
from pointsman.llm.errors import (
    ErrorDetail,
    error_detail,
    error_from_client,
    error_from_connection,
    error_from_status,
    error_from_stream_event,
)
from pointsman.llm.foreign_json import Field, parse_foreign
from pointsman.llm.network_guard import check_allowed, resolve_base_url
from pointsman.llm.prices import load_sdk
from pointsman.llm.replies import ParsedReply, model_reply, read_usage, unreadable
from pointsman.llm.server_sent_events import EventDecoder
from pointsman.llm.thinking import ThinkingFilter
from pointsman.ports.model import ModelReply, ModelRequest
from pointsman.util.environment import variable, variables
from pointsman.util.scrubber import hide_secret
from pointsman_schemas.events import Usage
from pointsman_schemas.ids import derive_id

__all__ = ["Dialect", "ProviderModel", "Stream", "open_response"]

_PAYLOADS = ("choices", "content", "output", "usage", "type", "id", "status")
"""Members of a reply. An object is an error if it has none of these members, but has a message."""


class Stream(Protocol):
    """The pieces of a streamed reply, assembled into the form of a whole reply."""

    def add(self, event: Field) -> str:
        """Add an event to the reply, and return the text of the answer in this event.

        Raises:
            ModelReplyError: The event does not have the expected form.
        """
        ...

    def whole(self) -> Field:
        """Return the reply so far, in the form of a whole reply."""
        ...


@dataclass(frozen=True, slots=True)
class Dialect:
    """One API of a provider, with functions that write a request and read its reply.

    Attributes:
        name: The name of the API.
        key_variable: The environment variable of the API key.
        write: Function that returns the body of a request to a model.
        read: Function that reads the body of a whole reply and returns a `ParsedReply`.
        stream: Function that returns an empty stream.
        send: Function that sends a body with the SDK's client and returns the context manager of a raw response.
        cached_apart: True if the API counts the tokens of its cache separately, and not as input.
    """

    name: str
    key_variable: str
    write: Callable[[ModelRequest, str, Capabilities, str], dict[str, Any]]
    read: Callable[[Field, ModelRequest], ParsedReply]
    stream: Callable[[ModelRequest], Stream]
    send: Callable[[Any, dict[str, Any]], Any]
    cached_apart: bool = False


def open_response(resource: Any, body: dict[str, Any], *named: str) -> Any:
    """Return the raw response to a request, as a context manager.

    Args:
        resource: The resource of the SDK's client, such as `client.messages`.
        body: The body of the request.
        *named: The fields that the SDK requires as arguments. The other fields go into the argument `extra_body`, which
            the SDK sends unchanged.

    Returns:
        The context manager of the raw response.
    """
    own = {name: body[name] for name in named if name in body}
    more = {name: value for name, value in body.items() if name not in own}
    return resource.with_streaming_response.create(**own, extra_body=more)


class ProviderModel:
    """A model behind a provider's API, in one dialect.

    Args:
        name: The provider's name of the model.
        api_key: The key. None means the key in the environment.
        base_url: The URL of the server. None means the URL in the environment, or the provider's own server.
        timeout: Limit of a whole call, in seconds.

    Raises:
        ConfigurationError: The key or the URL cannot be used.
    """

    provider: str
    """The name of the provider and of its SDK."""
    dialect: Dialect
    native_types: frozenset[str] = NATIVE_TYPES
    """Media types of attachments that the API takes."""
    needs_key: bool = True
    """False if a model with a base URL can be used without a key."""

    def __init__(
        self, name: str, *, api_key: str | None = None, base_url: str | None = None, timeout: float = 120.0
    ) -> None:
        self.name = name
        self._base_url = resolve_base_url(self.provider, base_url)
        self._key = _checked_key(self.dialect, api_key)
        self._timeout = timeout
        self.account = derive_id("account", self._base_url or "", self._key)[:12]
        self._sdk: ModuleType | None = None
        self._client: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._capabilities: dict[str, Capabilities] = {}
        if not self._key and (self.needs_key or self._base_url is None):
            url = "" if self.needs_key else f"{self.provider.upper()}_BASE_URL for a server of your own, or "
            raise ConfigurationError(
                f"the model {self.provider}:{name} needs a key and {self.dialect.key_variable} is not set; set it, or "
                f"{url}use the model `offline`"
            )

    async def complete(self, request: ModelRequest) -> ModelReply:
        check_allowed(self.provider, self.name, self._base_url)
        client = await self.connect()
        body = self._body(request)
        answer = _Answer(self.dialect.stream(request), request.on_text, self._raise_error)
        try:
            async with asyncio.timeout(self._timeout), aclosing(self._chunks(client, request, body)) as chunks:
                async for is_events, chunk in chunks:
                    answer.feed(chunk, is_events=is_events)
            whole = answer.finish()
        except TimeoutError as error:
            raise self._counted(error_from_connection(self.provider, error, self._base_url), answer) from None
        except _RefusedError as refused:
            raise self._refusal(refused, request, body) from None
        except ModelReplyError as error:
            raise unreadable(error, self.provider, self._usage(answer.so_far())) from None
        except ModelError as error:
            raise self._counted(error, answer) from None
        reply = self.reply(whole, request)
        if request.on_text is not None and not answer.has_shown and reply.text:
            request.on_text(reply.text)  # pass on the whole text, because the server streamed no text
        return reply

    def reply(self, whole: Field, request: ModelRequest) -> ModelReply:
        """Read a whole reply.

        Args:
            whole: The body of the reply.
            request: The request.

        Returns:
            The reply.

        Raises:
            ModelReplyError: The body is not a reply. The usage in the error is the usage that the body states.
            ModelError: The body is an error, or the answer ended with an error.
        """
        model = request.model or self.name
        usage = self._usage(whole)
        try:
            self._raise_error(whole, usage)
            parsed = self.dialect.read(whole.object(), request)
            parsed.usage = usage
            if parsed.state is not None:
                parsed.state = {"origin": self._origin(model), **parsed.state}
                self._learn_from(parsed.state, model)
            return model_reply(parsed, request, self.provider, model)
        except ModelReplyError as error:
            failure = unreadable(error, self.provider, usage)
        raise failure

    async def close(self) -> None:
        self._capabilities.clear()
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    # The request

    def _body(self, request: ModelRequest) -> dict[str, Any]:
        model = request.model or self.name
        known = self._known(model)
        body = known.applied(self.dialect.write(request, model, known, self._origin(model)))
        return {**body, "stream": True} if request.on_text is not None else body

    def _known(self, model: str) -> Capabilities:
        if model not in self._capabilities:
            self._capabilities[model] = capabilities_of(self.dialect.name, self._base_url, model)
        return self._capabilities[model]

    def _origin(self, model: str) -> str:
        """Return a digest of the model and its server. Opaque data of a reply is sent back only to the same origin."""
        return derive_id("origin", self.dialect.name, self._base_url or "", model)[:12]

    def _learn_from(self, state: Mapping[str, Any], model: str) -> None:
        if state.get("unsent"):
            self._known(model).thinks = True

    def _refusal(self, refused: _RefusedError, request: ModelRequest, body: dict[str, Any]) -> ModelError:
        """Return the error for a refusal. If the next request will differ, the error names the change."""
        error = error_from_status(self.provider, refused.status, refused.detail, refused.headers)
        learned = self._known(request.model or self.name).learn(refused.status, refused.detail, body, request)
        if self._body(request) == body:
            return error
        change = learned or "the request has the form that the server accepts"
        return ModelError(
            f"{error}; the next request will differ: {change}",
            retryable=True,
            retry_after=0.0,
            status=refused.status,
            usage=Usage(calls=1),
            adapted=change,
        )

    # The connection

    async def connect(self) -> Any:
        """Return the SDK's client for the running event loop. Nothing is sent.

        A client's connections belong to one event loop, so a new loop gets a new client.

        Raises:
            ModelError: The SDK or its client cannot be used here, for example because of a wrong proxy or CA file.
        """
        loop = asyncio.get_running_loop()
        try:
            if self._sdk is None:
                self._sdk = await load_sdk(self.provider)
            if self._client is None or self._loop is not loop:
                self._client, self._loop = self._new_client(self._sdk), loop
            return self._client
        except Exception as error:
            failure = error_from_client(self.provider, error, variables(""))
        raise failure

    def _new_client(self, sdk: Any) -> Any:
        raise NotImplementedError

    async def _chunks(
        self, client: Any, request: ModelRequest, body: dict[str, Any]
    ) -> AsyncGenerator[tuple[bool, bytes]]:
        """Yield the chunks of an answer, each with a flag that is True if the answer is a stream of events."""
        sdk: Any = self._sdk
        try:
            async with self.dialect.send(client, body) as response:
                kind = response.headers.get("content-type", "").lower()
                is_events = any(word in kind for word in ("event-stream", "ndjson", "jsonl", "json-seq"))
                async for chunk in response.iter_bytes():
                    yield is_events, chunk
        except sdk.APIStatusError as error:
            detail = error_detail(error.response.text)
            raise _RefusedError(error.status_code, detail, error.response.headers) from None
        except Exception as error:
            raise error_from_connection(self.provider, error, self._base_url) from None

    # The answer

    def _raise_error(self, body: Field, usage: Usage | None = None) -> None:
        """Raise the error in a body of status 200. Gateways send such a body if the provider behind them failed."""
        if (error := _error_in(body.value)) is not None:
            counted = usage if usage is not None else self._usage(body)
            raise error_from_stream_event(self.provider, error, counted)

    def _usage(self, whole: Field) -> Usage:
        return read_usage(whole, cached_apart=self.dialect.cached_apart)

    def _counted(self, error: ModelError, answer: _Answer) -> ModelError:
        """Return the error, with the tokens that the stream reported before the failure."""
        counted = self._usage(answer.so_far())
        if error.usage is not None and counted.tokens:
            error.usage = counted
        return error


class _RefusedError(Exception):
    """The server answered with an error status."""

    def __init__(self, status: int, detail: ErrorDetail, headers: Mapping[str, str]) -> None:
        super().__init__(status)
        self.status = status
        self.detail = detail
        self.headers = headers


class _Answer:
    """Reads an answer while it arrives. The server sends either a stream of events or one whole body."""

    def __init__(
        self, stream: Stream, on_text: Callable[[str], None] | None, raise_error: Callable[[Field], None]
    ) -> None:
        self.has_shown = False
        """True after a piece of the text was passed on."""
        self._is_whole = False
        self._stream = stream
        self._on_text = on_text
        self._raise_error = raise_error
        self._events: EventDecoder | None = None
        self._shown = ThinkingFilter()
        self._bytes = bytearray()
        self._count = 0

    def feed(self, chunk: bytes, *, is_events: bool) -> None:
        if self._events is None and not self._is_whole:
            chunk = bytes(self._bytes) + chunk
            self._bytes.clear()
            begin = chunk.removeprefix(b"\xef\xbb\xbf").lstrip()
            if not begin:
                self._bytes += chunk
                return
            self._is_whole = not (is_events or begin.startswith((b"data:", b"event:", b"id:", b":", b"retry:")))
            self._events = None if self._is_whole else EventDecoder()
        if self._events is None:
            self._bytes += chunk
            return
        for data in self._events.feed(chunk):
            self._take(data)

    def finish(self) -> Field:
        if self._events is None:
            return parse_foreign(self._bytes.decode("utf-8", "replace"))
        for data in self._events.close():
            self._take(data)
        self._show(self._shown.flush())
        return self._stream.whole()

    def so_far(self) -> Field:
        return Field(None) if self._events is None else self._stream.whole()

    def _take(self, data: str) -> None:
        if data.strip() == "[DONE]" or not data.strip():
            return
        self._count += 1
        event = parse_foreign(data, f"event {self._count}")
        self._raise_error(event)
        self._show(self._shown.feed(self._stream.add(event)))

    def _show(self, text: str) -> None:
        if text and self._on_text is not None:
            self.has_shown = True
            self._on_text(text)


def _error_in(body: object) -> object | None:
    """Return the error if the body is an error or contains an error, else None."""
    if isinstance(body, list):
        return body if body and _error_in(body[0]) is not None else None
    if not isinstance(body, dict):
        return None
    if body.get("error") or "error" in (body.get("type"), body.get("object")):
        return body
    is_reply = any(name in body for name in _PAYLOADS)
    words = next((body[name] for name in ("message", "detail", "msg") if body.get(name)), None)
    return body if words is not None and not is_reply else None


def _checked_key(dialect: Dialect, given: str | None) -> str:
    """Return the API key, without white space around the key, and hide the key in logs and errors of this process.

    Raises:
        ConfigurationError: The key has white space or letters outside of ASCII, which no header can contain.
    """
    key = (given or "").strip() or variable(dialect.key_variable) or ""
    if bad := next((letter for letter in key if not "!" <= letter <= "~"), ""):
        place = "api_key" if (given or "").strip() else dialect.key_variable
        what = "white space" if bad.isspace() else f"the character U+{ord(bad):04X}"
        raise ConfigurationError(
            f"{place} contains {what}, at character {key.index(bad) + 1} of {len(key)}; expected a key of printable "
            "ASCII characters: copy the key again"
        )
    hide_secret(key)
    return key
