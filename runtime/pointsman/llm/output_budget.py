"""Compute the length of an answer that keeps a model call within the budget of its attempt.

The input is estimated, rather too high than too low, and the answer gets the rest of the budget. The provider limits
the length of the answer. So a call exceeds the budget at most by the error of the estimate. Cost can be limited only if
the model's price is known. For a call that was interrupted before its usage arrived, an estimated usage is counted.
"""

from __future__ import annotations

import math
from typing import Final

from pointsman.llm.attachments import is_image
from pointsman.llm.prices import with_cost
from pointsman.ports.model import Attachment, ModelRequest
from pointsman.util.threads import run_in_thread
from pointsman_schemas.events import Usage
from pointsman_schemas.strict_json import compact_json

__all__ = [
    "MIN_ANSWER_TOKENS",
    "MIN_CALL_TOKENS",
    "affordable_output_tokens",
    "estimate_input_tokens",
    "estimate_interrupted_usage",
    "min_answer_tokens",
]

MIN_ANSWER_TOKENS: Final = 16
"""Smallest limit of an answer, in tokens. OpenAI's responses API accepts no smaller limit, and less text is useless."""
MIN_CALL_TOKENS: Final = 64
"""Smallest limit of an answer with tools or an output schema, in tokens. One short value, with names, quotes and braces
around it, needs 20 to 50 tokens. An answer that is cut earlier is useless, but costs money."""

_LETTERS_PER_TOKEN: Final = 3
"""Number of characters in a token. A token of prose has four or more characters, and a token of JSON or code has about
three. Three is the safe value for a call with both."""
_BYTES_PER_TOKEN: Final = 2
"""Number of bytes in a token of non-ASCII letters. A letter has two to four bytes. In most scripts, a token has at
least one letter, so two bytes is the safe value. An emoji has four bytes and takes two or three tokens."""
_TURN_TOKENS: Final = 8
"""Number of tokens that the provider adds for each turn, tool and call. OpenAI documents three to seven."""
_TOOLS_TOKENS: Final = 350
"""Number of tokens of the instructions that Anthropic adds to a request with tools. A request for an answer by a schema
has a tool, too. Anthropic documents up to 346."""

_IMAGE_TOKENS: Final = 1_600
"""Largest number of tokens of an image. Anthropic and OpenAI scale large images down, so no image takes more tokens."""
_PAGE_TOKENS: Final = 3_000
"""Number of tokens of a document page, which a provider reads as text and as an image."""
_PAGE_BYTES: Final = 50_000
"""Number of bytes of a page of an ordinary PDF file."""

_PRICED_TOKENS: Final = 1_000  # number of tokens whose price is read, to compute the price of one token


def estimate_input_tokens(request: ModelRequest) -> int:
    """Return an estimate of the number of input tokens of a request. Only unusual text takes more tokens than this."""
    tools = [(tool.name, tool.description, compact_json(dict(tool.parameters)).decode()) for tool in request.tools]
    texts = [request.instructions, *(turn.text for turn in request.turns), *(text for tool in tools for text in tool)]
    texts += [part for turn in request.turns for call in turn.calls for part in (call.name, call.arguments)]
    if request.output_schema is not None:
        texts.append(compact_json(dict(request.output_schema)).decode())
    texts += [compact_json(dict(turn.provider_state)).decode() for turn in request.turns if turn.provider_state]
    parts = 1 + len(tools) + sum(1 + len(turn.calls) for turn in request.turns)
    files = sum(_attachment_tokens(each) for turn in request.turns for each in turn.attachments)
    added = files + (_TOOLS_TOKENS if tools or request.output_schema is not None else 0)
    return sum(map(_estimate_tokens, texts)) + parts * _TURN_TOKENS + added


def estimate_interrupted_usage(request: ModelRequest, told: Usage | None, heard: str) -> Usage:
    """Return the usage of a call that was started and did not return a whole answer.

    Args:
        request: The request.
        told: The usage that the provider reported, or None.
        heard: The part of the answer that arrived.

    Returns:
        The reported usage, with two changes. If the input was not reported, it is estimated. If the estimate for
        `heard` is larger than the reported output, the estimate is the output.
    """
    told = told or Usage(calls=1)
    return told.model_copy(
        update={
            "input_tokens": told.input_tokens or estimate_input_tokens(request),
            "output_tokens": max(told.output_tokens, _estimate_tokens(heard)),
        }
    )


def min_answer_tokens(request: ModelRequest) -> int:
    """Return the smallest number of answer tokens for which the call is useful."""
    return MIN_CALL_TOKENS if request.tools or request.output_schema is not None else MIN_ANSWER_TOKENS


async def affordable_output_tokens(provider: str, model: str, input_tokens: int, dollars: float) -> int | None:
    """Return the number of answer tokens that an amount of money buys. The price table is loaded in a thread.

    Args:
        provider: The provider.
        model: The model.
        input_tokens: The tokens of the input.
        dollars: The amount, in US dollars.

    Returns:
        The tokens; negative if the amount is too small for the input. None if the model costs nothing.
    """
    return await run_in_thread(_affordable_output_tokens, provider, model, input_tokens, dollars)


def _affordable_output_tokens(provider: str, model: str, input_tokens: int, dollars: float) -> int | None:
    read = with_cost(provider, model, Usage(input_tokens=input_tokens)).cost
    written = with_cost(provider, model, Usage(input_tokens=input_tokens, output_tokens=_PRICED_TOKENS)).cost - read
    if written <= 0:
        return None if read <= dollars else -1
    return math.floor((dollars - read) * _PRICED_TOKENS / written)


def _attachment_tokens(attachment: Attachment) -> int:
    if is_image(attachment):
        return _IMAGE_TOKENS
    return _PAGE_TOKENS * max(1, len(attachment.data) // _PAGE_BYTES)


def _estimate_tokens(text: str) -> int:
    wide = len(text.encode("utf-8", "replace")) - len(text)  # bytes of wide letters after the first byte
    if not wide:
        return math.ceil(len(text) / _LETTERS_PER_TOKEN)
    plain = sum(1 for letter in text if letter.isascii())
    return math.ceil(plain / _LETTERS_PER_TOKEN + (len(text) + wide - plain) / _BYTES_PER_TOKEN)
