"""How long the answer of a model call may be for the call to stay within what is left of its attempt's allowance.

The input is estimated, on the high side, and the answer gets what it leaves. What is used exceeds what there was only
by what an estimate was short: never by the answer, whose length the provider keeps. Cost is bounded only where the
price of the model is known. A call that broke off before its usage was told counts what it is estimated to have used.
"""

from __future__ import annotations

import math
from typing import Final

from pointsman.llm.prices import priced
from pointsman.ports.model import ModelRequest
from pointsman.util.threads import in_thread
from pointsman_schemas.events import Usage
from pointsman_schemas.strict_json import compact_json

__all__ = ["LEAST_ANSWER", "LEAST_CALL", "affordable", "broken_off", "estimated_input", "least_answer"]

LEAST_ANSWER: Final = 16
"""Tokens an answer must have room for: OpenAI's responses take no smaller bound, and less would say nothing."""
LEAST_CALL: Final = 64
"""The same where there are tools or an output schema: names, quotes and braces around one short value take some 20 to
50, and what is cut off within them is paid for and no use."""

_LETTERS_OF_A_TOKEN: Final = 3
"""English prose has four and more, JSON and code about three: the text of a call is a mixture of these."""
_BYTES_OF_A_TOKEN: Final = 2
"""Of letters outside ASCII, which take two to four bytes each: most scripts have a letter or more in a token, and an
emoji is two or three tokens."""
_TURN: Final = 8
"""Tokens around each turn, tool and call, which the provider adds: three to seven by OpenAI's own account."""
_TOOLS: Final = 350
"""Tokens of the instructions that Anthropic adds where there are tools, or an answer by a schema, which is one: up to
346 for the models it lists."""

_RATED: Final = 1_000  # tokens whose price is asked for to know that of one


def estimated_input(request: ModelRequest) -> int:
    """Tokens that the input of `request` takes at most, unless its text is of an unusual kind."""
    tools = [(tool.name, tool.description, compact_json(dict(tool.parameters)).decode()) for tool in request.tools]
    texts = [request.instructions, *(turn.text for turn in request.turns), *(text for tool in tools for text in tool)]
    texts += [part for turn in request.turns for call in turn.calls for part in (call.name, call.arguments)]
    if request.output_schema is not None:
        texts.append(compact_json(dict(request.output_schema)).decode())
    parts = 1 + len(tools) + sum(1 + len(turn.calls) for turn in request.turns)
    added = _TOOLS if tools or request.output_schema is not None else 0
    return sum(map(_tokens, texts)) + parts * _TURN + added


def broken_off(request: ModelRequest, told: Usage | None, heard: str) -> Usage:
    """What a call has used that was under way and gave no whole answer: what its provider `told` of it, at least the
    whole input and what was `heard` of the answer."""
    told = told or Usage(calls=1)
    return told.model_copy(
        update={
            "input_tokens": told.input_tokens or estimated_input(request),
            "output_tokens": max(told.output_tokens, _tokens(heard)),
        }
    )


def least_answer(request: ModelRequest) -> int:
    """Tokens below which an answer to `request` is not worth its call."""
    return LEAST_CALL if request.tools or request.output_schema is not None else LEAST_ANSWER


async def affordable(provider: str, model: str, input_tokens: int, dollars: float) -> int | None:
    """Tokens of an answer that `dollars` pay for after the input, less than none where they do not even pay for that;
    None where no price of the model is known. The price table is loaded outside of the event loop."""
    return await in_thread(_affordable, provider, model, input_tokens, dollars)


def _affordable(provider: str, model: str, input_tokens: int, dollars: float) -> int | None:
    read = priced(provider, model, Usage(input_tokens=input_tokens)).cost
    written = priced(provider, model, Usage(input_tokens=input_tokens, output_tokens=_RATED)).cost - read
    if written <= 0:
        return None if read <= dollars else -1
    return math.floor((dollars - read) * _RATED / written)


def _tokens(text: str) -> int:
    wide = len(text.encode("utf-8", "replace")) - len(text)  # bytes of wide letters beyond one each
    if not wide:
        return math.ceil(len(text) / _LETTERS_OF_A_TOKEN)
    plain = sum(1 for letter in text if letter.isascii())
    return math.ceil(plain / _LETTERS_OF_A_TOKEN + (len(text) + wide - plain) / _BYTES_OF_A_TOKEN)
