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

# longest time in which a body must arrive; a slow sender must not keep its connection open for ever
_BODY_TIMEOUT_S = 20.0
_MAX_BODY_BYTES = 10_000  # largest size in bytes of a body with only a few words


async def read_json_object(
    request: Request, fields: Collection[str] = (), most: int = _MAX_BODY_BYTES
) -> dict[str, Any]:
    """Return the body: a JSON object with known fields, of at most `most` bytes, received within `_BODY_TIMEOUT_S`.

    Raises:
        ContractError: The body is not such an object, or has a field that is not in `fields`.
        HTTPException: The body did not arrive in time.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise ContractError("the content type of the body is not application/json")
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
    """Yield a body with the content type application/octet-stream in pieces.

    A page of another origin cannot send this content type, because its browser first asks this server for permission,
    and this server refuses.

    Yields:
        The pieces.

    Raises:
        ContractError: The content type is not application/octet-stream.
        HTTPException: A piece did not arrive in time, or the sender has disconnected.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/octet-stream":
        raise ContractError("the content type of the body is not application/octet-stream")
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
        raise HTTPException(400, "the body is not complete, because the sender has disconnected") from None


def json_response(content: Any, status: int = 200) -> Response:
    """Return a JSON response with `content`."""
    return Response(to_json(content), status, media_type="application/json")


async def error_response(request: Request, error: Exception) -> Response:
    """Return a JSON response for a Pointsman error, with the message as `error`, the `kind`, and the HTTP status."""
    assert isinstance(error, PointsmanError)
    response = json_response({"error": str(error), "kind": error.kind}, status_of(error))
    response.headers.update(headers_of(error))
    return response


def parse_number(given: str) -> int:
    """Parse a number from a browser; return 0 if the text is not a valid number."""
    return int(given) if given.isascii() and given.isdecimal() and len(given) < 19 else 0
