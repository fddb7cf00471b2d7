"""Read JSON requests and make JSON responses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection
from typing import Any

from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from pointsman.errors import ContractError, PointsmanError
from pointsman.http.statuses import headers_of, status_of
from pointsman_schemas.base import unknown_name_message
from pointsman_schemas.strict_json import parse_json

__all__ = ["body_pieces", "error_response", "json_response", "parse_number", "read_json_object"]

_BODY_TIMEOUT_S = 20.0  # for a body to arrive: a slow sender must not hold its connection for ever
_MAX_BODY_BYTES = 10_000  # for bodies with only a few words


async def read_json_object(
    request: Request, fields: Collection[str] = (), most: int = _MAX_BODY_BYTES
) -> dict[str, Any]:
    """Return the body: a JSON object with known fields, of at most `most` bytes, received within `_BODY_TIMEOUT_S`.

    Raises:
        ContractError: The body is something else, or has a field that is not one of `fields`.
        HTTPException: The body did not arrive in time.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise ContractError("the body is not declared as application/json")
    body = bytearray()
    try:
        async with asyncio.timeout(_BODY_TIMEOUT_S):
            async for piece in request.stream():
                body += piece
                if len(body) > most:
                    raise ContractError(f"the body has more than {most} bytes")
    except TimeoutError:
        raise HTTPException(408, f"the body did not arrive within {_BODY_TIMEOUT_S:g} s") from None
    content = parse_json(bytes(body)) if body else {}
    if not isinstance(content, dict):
        raise ContractError("the body is not a JSON object")
    for name in content:
        if name not in fields:
            known = unknown_name_message(name, fields) if fields else f"has no {name!r}; expected an empty object"
            raise ContractError(f"the body {known}")
    return content


async def body_pieces(request: Request) -> AsyncGenerator[bytes, None]:
    """Yield the body, which is declared as application/octet-stream, in pieces.

    A browser sends this type to another origin only if that origin allows it, as for JSON.

    Yields:
        The pieces.

    Raises:
        ContractError: The body is declared as something else.
        HTTPException: A piece did not arrive in time, or the sender has left.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/octet-stream":
        raise ContractError("the body is not declared as application/octet-stream")
    stream = request.stream()
    try:
        while True:
            async with asyncio.timeout(_BODY_TIMEOUT_S):
                piece = await anext(stream, None)
            if piece is None:
                return
            yield piece
    except TimeoutError:
        raise HTTPException(408, f"nothing of the body arrived for {_BODY_TIMEOUT_S:g} s") from None
    except ClientDisconnect:
        raise HTTPException(400, "the body is not whole: the sender has left") from None


def json_response(content: Any, status: int = 200) -> Response:
    """Return a JSON response with `content`."""
    return Response(to_json(content), status, media_type="application/json")


async def error_response(request: Request, error: Exception) -> Response:
    """Return a JSON response for a Pointsman error: the message as `error`, the `kind`, and the error's HTTP status."""
    assert isinstance(error, PointsmanError)
    response = json_response({"error": str(error), "kind": error.kind}, status_of(error))
    response.headers.update(headers_of(error))
    return response


def parse_number(given: str) -> int:
    """Parse a number from a browser; return 0 if the text is not a valid number."""
    return int(given) if given.isascii() and given.isdecimal() and len(given) < 19 else 0
