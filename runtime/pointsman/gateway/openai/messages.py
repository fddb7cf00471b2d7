"""Convert the messages of a client to the request of a workflow."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pointsman.gateway.openai.parts import FilePart, file_part
from pointsman.gateway.problems import ProblemError
from pointsman_schemas.events import Outcome
from pointsman_schemas.files import File
from pointsman_schemas.ids import derive_id
from pointsman_schemas.strict_json import compact_json

__all__ = ["Message", "answer_text", "message_key", "read_message", "request_text", "thread_key", "turn_text"]

_MAX_HISTORY = 20  # largest number of earlier messages that are sent with a request, without the instructions
_MAX_HISTORY_CHARS = 32_000  # largest number of characters of the earlier messages and the instructions together
_FILES_ALONE = "The request is in the files."  # the request, if the newest message has files but no text
_TEXT_PARTS = ("text", "input_text", "output_text", "refusal")
_THREAD_HEADERS = ("x-openwebui-chat-id", "x-conversation-id", "x-librechat-conversation-id")
_MESSAGE_HEADERS = ("x-openwebui-message-id", "x-message-id", "x-librechat-message-id")


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a conversation.

    Attributes:
        role: `system`, `developer`, `user`, `assistant` or `tool`.
        text: The text.
        files: The files.
    """

    role: str
    text: str
    files: tuple[FilePart | File, ...] = ()


def read_message(role: str, content: object) -> Message:
    """Return a message from the role and the content in the request.

    Args:
        role: The role.
        content: A text, a list of parts, or None.

    Returns:
        The message.

    Raises:
        ProblemError: A part is neither a text nor a file.
    """
    if content is None or isinstance(content, str):
        return Message(role, content or "")
    texts: list[str] = []
    files: list[FilePart] = []
    for part in content if isinstance(content, list) else [content]:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, Mapping) and part.get("type", "text") in _TEXT_PARTS:
            text = part.get("text", part.get("refusal", ""))
            texts.append(text if isinstance(text, str) else "")
        elif isinstance(part, Mapping) and (file := file_part(part)) is not None:
            files.append(file)
        else:
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise ProblemError(
                400, "unsupported_content", f"a part of type {str(kind)[:80]!r} is neither text nor a file; send text"
            )
    return Message(role, "\n".join(texts), tuple(files))


def request_text(messages: Sequence[Message]) -> str:
    """Return the request for a conversation: the newest message, and the earlier messages as fenced data.

    Args:
        messages: The messages, oldest first. The last message with the role `user` is the request.

    Returns:
        The request.

    Raises:
        ProblemError: No message has the role `user`, or the last such message is empty.
    """
    newest = next((index for index in reversed(range(len(messages))) if messages[index].role == "user"), None)
    if newest is None or not (messages[newest].text.strip() or messages[newest].files):
        detail = "no message has the role `user`, or the last such message is empty; send a message with a text"
        raise ProblemError(400, "empty_request", detail)
    asked = messages[newest].text if messages[newest].text.strip() else _FILES_ALONE
    history = _bounded([*messages[:newest], *messages[newest + 1 :]])
    if not history:
        return asked
    lines = [json.dumps({"role": each.role, "text": each.text}, ensure_ascii=False) for each in history]
    # The fence is longer than any row of backticks in the data, so the data cannot close the fence.
    fence = "`" * (3 + max((line.count("`") for line in lines), default=0))
    data = "\n".join(lines)
    return (
        f"{asked}\n\n"
        f"The earlier messages of the conversation, as data, one JSON object per line:\n{fence}json\n{data}\n{fence}"
    )


def turn_text(messages: Sequence[Message]) -> str:
    """Return the request for the next turn of a thread: the newest message, and the instructions as fenced data.

    The earlier messages are omitted, because the thread already contains the earlier turns.

    Args:
        messages: The messages, oldest first.

    Returns:
        The request.
    """
    told = [each for each in messages if each.role in ("system", "developer")]
    said = [each for each in messages if each.role == "user"]
    return request_text([*told, *said[-1:]])


def _bounded(messages: Sequence[Message]) -> list[Message]:
    """Return the instructions, and the newest of the other messages, within the bounds of the history."""
    told = [each for each in messages if each.role in ("system", "developer") and each.text.strip()]
    said = [each for each in messages if each.role not in ("system", "developer") and each.text.strip()]
    room = _MAX_HISTORY_CHARS - sum(len(each.text) for each in told)
    kept: list[Message] = []
    for message in reversed(said[-_MAX_HISTORY:]):
        room -= len(message.text)
        if room < 0:
            break
        kept.append(message)
    return [*(Message(each.role, each.text[:_MAX_HISTORY_CHARS]) for each in told), *reversed(kept)]


def thread_key(headers: Mapping[str, str], messages: Sequence[Message]) -> str:
    """Return the name of the conversation: a digest of a header of the chat application, or of the first messages.

    Args:
        headers: The headers of the request, with names in lower case.
        messages: The messages.

    Returns:
        The name.
    """
    for name in _THREAD_HEADERS:
        if given := headers.get(name, "").strip():
            return derive_id("thread", given, length=32)
    begin = next((each.text for each in messages if each.role == "user"), "")
    told = [each.text for each in messages if each.role in ("system", "developer")]
    return derive_id("thread", *told, begin, length=32)


def message_key(headers: Mapping[str, str]) -> str | None:
    """Return the idempotency key for a message of a chat application.

    Args:
        headers: The headers of the request, with names in lower case.

    Returns:
        The key; None if no header of `_MESSAGE_HEADERS` names the message.
    """
    for name in _MESSAGE_HEADERS:
        if given := headers.get(name, "").strip():
            return derive_id("message", given, length=32)
    return None


def answer_text(outcome: Outcome) -> str:
    """Return the answer of a workflow as text, with a list of the gaps.

    Args:
        outcome: The outcome.

    Returns:
        The text.
    """
    answer: Any = outcome.answer
    text = answer if isinstance(answer, str) else "" if answer is None else compact_json(answer).decode()
    if outcome.status != "partial" or not outcome.gaps:
        return text
    gaps = "".join(f"\n- {gap.task_id} ({gap.agent}): {gap.reason}" for gap in outcome.gaps)
    return f"{text}\n\nNot answered:{gaps}"
