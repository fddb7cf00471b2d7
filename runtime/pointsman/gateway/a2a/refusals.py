"""Refuse requests that the SDK of A2A cannot read.

Without this module, the SDK reports most of these requests as its own faults, or crashes.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from a2a.server.jsonrpc_models import JSONParseError
from a2a.server.request_handlers.response_helpers import build_error_response
from a2a.utils.error_handlers import build_rest_error_payload
from a2a.utils.errors import A2AError, ContentTypeNotSupportedError, InvalidParamsError
from google.protobuf.json_format import ParseError
from sse_starlette import EventSourceResponse
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from pointsman.errors import ContractError
from pointsman.gateway.a2a.calls import reached_team
from pointsman_schemas.strict_json import parse_json

__all__ = ["checked", "refuse_body", "refuse_type"]

_INTERNAL_ERROR = -32603
_UNKNOWN = "unknown exception"  # the SDK's text for errors that it does not know
_MAX_REASON_CHARS = 200


def refuse_type(kind: str, *, rpc: bool) -> Response:
    """Return the refusal of a body whose content type is not JSON.

    Args:
        kind: The content type of the body; empty if the request names none.
        rpc: True for JSON-RPC, False for HTTP+JSON.

    Returns:
        The refusal.
    """
    error = ContentTypeNotSupportedError(f"the body is {kind[:80] or 'of no type'!r}; send application/json")
    if rpc:
        return JSONResponse(build_error_response(None, error))
    return JSONResponse(build_rest_error_payload(error), 415)


async def refuse_body(request: Request, *, rpc: bool) -> Response | None:
    """Refuse a body that is not strict JSON: for example, it has half a surrogate pair, NaN or the same key twice.

    Args:
        request: The request.
        rpc: True for JSON-RPC, False for HTTP+JSON.

    Returns:
        The refusal. None if the body is strict JSON, or if the request has no body.
    """
    if not (body := await request.body()):
        return None
    try:
        parse_json(body)
    except ContractError as error:
        if rpc:
            return JSONResponse(build_error_response(None, JSONParseError(message=str(error))))
        return JSONResponse(build_rest_error_payload(ParseError(str(error))), 400)
    return None


async def checked(response: Response, request: Request, *, rpc: bool) -> Response:
    """Return the response of the SDK, or a refusal if the SDK failed before the request reached the team.

    The SDK converts requests of the version 0.3 without checks, so an invalid request makes it fail. If the response is
    a stream, the SDK fails when the first event is read. So this function reads the first event before any part of the
    response is sent, because afterwards the client cannot get a refusal.

    Args:
        response: The response of the SDK.
        request: The request.
        rpc: True for JSON-RPC, False for HTTP+JSON.

    Returns:
        The response.
    """
    if isinstance(response, EventSourceResponse):
        return await _begun(response, request, rpc=rpc)
    if reached_team(request) or not isinstance(response, JSONResponse):
        return response
    body = json.loads(bytes(response.body))
    failed = response.status_code >= 500 if not rpc else _code_of(body) == _INTERNAL_ERROR
    return await _unreadable(request, body["error"].get("message", ""), rpc=rpc) if failed else response


async def _begun(response: EventSourceResponse, request: Request, *, rpc: bool) -> Response:
    """Read the first event of a stream. Return the stream with this event, or a refusal in place of the stream."""
    events = aiter(response.body_iterator)
    try:
        first = await anext(events)
    except StopAsyncIteration:
        return response
    except A2AError as error:
        payload = build_rest_error_payload(error)
        return JSONResponse(payload, payload["error"]["code"])
    except Exception as error:
        if reached_team(request):
            raise
        return await _unreadable(request, str(error), rpc=rpc)
    if rpc and not reached_team(request) and isinstance(first, dict):
        body = json.loads(first["data"])
        if _code_of(body) == _INTERNAL_ERROR:
            return await _unreadable(request, body["error"].get("message", ""), rpc=rpc)
    response.body_iterator = _with_first(first, events)
    return response


async def _with_first(first: Any, events: AsyncIterator[Any]) -> AsyncIterator[Any]:
    try:
        yield first
        async for event in events:
            yield event
    finally:
        if (close := getattr(events, "aclose", None)) is not None:
            await close()


async def _unreadable(request: Request, reason: str, *, rpc: bool) -> Response:
    found = f": {reason[:_MAX_REASON_CHARS]}" if reason not in ("", _UNKNOWN) else ""
    error = InvalidParamsError(f"the request cannot be read{found}; compare it with the schema of A2A")
    if not rpc:
        return JSONResponse(build_rest_error_payload(error), 400)
    body = parse_json(await request.body())
    id = body.get("id") if isinstance(body, dict) else None
    return JSONResponse(build_error_response(id if isinstance(id, str | int) else None, error))


def _code_of(body: Any) -> object:
    error = body.get("error") if isinstance(body, dict) else None
    return error.get("code") if isinstance(error, dict) else None
