"""Read the message of a client: the input and the files of a request, or the answer to a question."""

from __future__ import annotations

import json
import mimetypes
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from a2a.types.a2a_pb2 import AgentCard, Message
from a2a.utils.errors import ContentTypeNotSupportedError, InvalidParamsError
from a2a.utils.input_mode_validator import validate_input_modes
from google.protobuf.json_format import MessageToDict
from pydantic import JsonValue

from pointsman.gateway.a2a.parts import META
from pointsman_schemas.log import QuestionAsked
from pointsman_schemas.strict_json import compact_json

__all__ = [
    "INPUT_MODES",
    "GivenAnswer",
    "GivenFile",
    "GivenInput",
    "answer_in",
    "check_parts",
    "input_in",
    "metadata_in",
]

INPUT_MODES = (
    "text/plain", "text/markdown", "text/csv", "text/html", "application/json", "application/xml", "application/yaml",
    "application/pdf", "application/octet-stream", "image/png", "image/jpeg", "image/gif", "image/webp",
)  # fmt: skip
"""Media types of parts that a team accepts."""

_MAX_PARTS = 50
_YES = frozenset({"yes", "y", "approve", "approved", "allow", "allowed", "accept", "accepted", "ok", "true"})
_NO = frozenset({"no", "n", "reject", "rejected", "deny", "denied", "decline", "declined", "refuse", "false"})
_CARD = AgentCard(default_input_modes=INPUT_MODES)


class GivenFile(NamedTuple):
    """A file of a message."""

    name: str
    media_type: str
    content: bytes


class GivenInput(NamedTuple):
    """The request of a message: the input and the files."""

    input: str | dict[str, JsonValue]
    files: list[GivenFile]


class GivenAnswer(NamedTuple):
    """The answer of a message to a question."""

    action: Literal["answer", "approve", "reject"]
    value: JsonValue = None
    reason: str = ""


def check_parts(message: Message) -> None:
    """Refuse a message with parts that no team accepts.

    Args:
        message: The message.

    Raises:
        ContentTypeNotSupportedError: The media type of a part is not in `INPUT_MODES`, or a part is the address of a
            file.
        InvalidParamsError: There are too many parts, or a part has no content.
    """
    validate_input_modes(message, _CARD)
    if len(message.parts) > _MAX_PARTS:
        raise InvalidParamsError(f"the message has {len(message.parts)} parts; send at most {_MAX_PARTS}")
    for part in message.parts:
        match part.WhichOneof("content"):
            case "url":
                raise ContentTypeNotSupportedError(
                    "a part is the address of a file, but the gateway fetches no files; send the content as `raw`"
                )
            case None:
                raise InvalidParamsError("a part has no content; send `text`, `data` or `raw`")


def input_in(message: Message) -> GivenInput:
    """Return the request in a message.

    If the message has one object and no text, the object is the input. Otherwise, the input is a text: the texts of the
    message, followed by its data as JSON.

    Args:
        message: The message.

    Returns:
        The request.

    Raises:
        InvalidParamsError: The message has neither text nor data.
    """
    files: list[GivenFile] = []
    texts: list[str] = []
    data: list[Any] = []
    for part in message.parts:
        match part.WhichOneof("content"):
            case "text":
                texts.append(part.text)
            case "data":
                data.append(_plain(MessageToDict(part.data)))
            case "raw":
                media_type = part.media_type or mimetypes.guess_type(part.filename)[0] or "application/octet-stream"
                name = part.filename or f"file-{len(files) + 1}{mimetypes.guess_extension(media_type) or '.bin'}"
                files.append(GivenFile(name, media_type, part.raw))
            case _:
                pass
    if not texts and len(data) == 1 and isinstance(data[0], dict) and data[0]:
        return GivenInput(data[0], files)
    text = "\n\n".join([*texts, *(compact_json(each).decode() for each in data)])
    if not text.strip():
        raise InvalidParamsError("the message has neither text nor data; send the request as a part with `text`")
    return GivenInput(text, files)


def answer_in(message: Message, question: QuestionAsked) -> GivenAnswer:
    """Return the answer in a message.

    Args:
        message: The message.
        question: The question that the message answers.

    Returns:
        The answer.

    Raises:
        InvalidParamsError: The question asks for an approval, but the message neither approves nor rejects.
    """
    texts = [part.text for part in message.parts if part.WhichOneof("content") == "text"]
    data = [_plain(MessageToDict(part.data)) for part in message.parts if part.WhichOneof("content") == "data"]
    text = "\n\n".join(texts).strip()
    if question.about == "information":
        return GivenAnswer("answer", data[0] if data else _by_schema(text, question.input_schema))
    if data and isinstance(data[0], dict) and isinstance(data[0].get("approved"), bool):
        given: Mapping[str, Any] = data[0]
        if given["approved"]:
            return GivenAnswer("approve", given.get("input"))
        return GivenAnswer("reject", reason=str(given.get("reason") or text))
    first = text.partition(" ")[0].strip(".,:;!").lower()
    if first in _YES:
        return GivenAnswer("approve")
    if first in _NO:
        return GivenAnswer("reject", reason=text)
    raise InvalidParamsError(
        f"the task waits for an approval (question {question.question}); answer with the data "
        '{"approved": true}, or {"approved": false, "reason": "..."}, or with `yes` or `no` as text'
    )


def metadata_in(message: Message, request: Mapping[str, Any]) -> dict[str, JsonValue]:
    """Return the metadata for the agents, from a message and its request, without Pointsman's own keys.

    Args:
        message: The message.
        request: The metadata of the request.

    Returns:
        The metadata.
    """
    given = {**request, **MessageToDict(message.metadata)}
    return {name: _plain(value) for name, value in given.items() if not name.startswith(META)}


def _by_schema(text: str, schema: Mapping[str, JsonValue] | None) -> JsonValue:
    """Return a text as JSON if the schema asks for JSON and the text is JSON; otherwise return the text."""
    if schema is None or schema.get("type", "string") == "string" or "enum" in schema:
        return text
    try:
        value: JsonValue = json.loads(text)
    except ValueError:
        return text
    return value


def _plain(value: Any) -> Any:
    """Return a value of protobuf as JSON, with 3.0 as 3, because numbers of protobuf are floats."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value
