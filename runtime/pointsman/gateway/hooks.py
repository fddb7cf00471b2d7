"""Receive signed webhooks as requests to teams."""

from __future__ import annotations

from time import time
from typing import Annotated, Any
from urllib.parse import parse_qsl

from fastapi import APIRouter, Path, Request, Response
from pydantic import JsonValue
from starlette.responses import JSONResponse

from pointsman.errors import ContractError
from pointsman.gateway.callers import Caller
from pointsman.gateway.catalog import log_unserved
from pointsman.gateway.context import ContextArg, derived_key
from pointsman.gateway.hook_config import Hook
from pointsman.gateway.hook_signatures import MAX_AGE_S, is_stale, is_verified, missing_header
from pointsman.gateway.problems import ProblemError, problems
from pointsman.index.callers import CallerLimits
from pointsman_schemas.ids import TOKEN_PATTERN, stable_digest
from pointsman_schemas.strict_json import parse_json

__all__ = ["router"]

router = APIRouter(prefix="/v1/hooks", tags=["events"])

_FORM_TYPE = "application/x-www-form-urlencoded"
_MAX_FIELDS = 100  # maximum number of fields of a form
_BODY = {"required": True, "content": {"application/json": {"schema": {"description": "The body of the sender."}}}}


@router.post(
    "/{name}",
    status_code=202,
    summary="Deliver a signed webhook",
    description="Store a delivery of a configured webhook as a request to its team. A delivery needs no key, because "
    "the delivery is signed. A repeated delivery starts no second workflow.",
    response_class=Response,
    response_model=None,
    openapi_extra={"requestBody": _BODY, "security": []},
    responses={
        200: {
            "description": "The answer to a request of Slack that verifies the address.",
            "content": {"application/json": {"schema": {"description": "The challenge."}}},
        },
        202: {"description": "The delivery is stored, and its workflow will have exactly one outcome."},
        **problems(404),
    },
)
async def deliver_webhook(
    name: Annotated[str, Path(pattern=TOKEN_PATTERN, description="The name of the webhook in the configuration.")],
    request: Request,
    context: ContextArg,
) -> Response:
    """Store a delivery as a request to a team."""
    hook = context.hooks.get(name)
    if hook is None:
        raise ProblemError(404, "unknown_webhook", "there is no webhook of this name in POINTSMAN_GATEWAY_HOOKS")
    headers = dict(request.headers)
    # These checks need no body, so most foreign requests are refused before the body is read.
    if (missing := missing_header(hook.form, headers)) is not None:
        raise _refused(f"the header {missing} is missing; sign the delivery with the secret of the webhook")
    if is_stale(hook.form, headers, time()):
        raise _refused(
            f"the time of the delivery is not valid, or differs from the clock by more than {MAX_AGE_S} s; sign each "
            "attempt with the present time"
        )
    body = await request.body()
    if not is_verified(hook, headers, body):
        raise _refused(
            "no signature of the delivery was made with a secret of this webhook; sign the delivery with the secret"
        )
    caller = Caller(hook.caller, teams={hook.team}, limits=CallerLimits().over(context.settings))
    request.state.charge(caller)
    content = _content(headers.get("content-type", ""), body)
    if hook.form == "slack" and isinstance(content, dict) and content.get("type") == "url_verification":
        return JSONResponse({"challenge": content.get("challenge")})
    id = _delivery_id(hook, headers, content, body)
    facts: dict[str, JsonValue] = {"name": hook.name, "id": id}
    if hook.form == "github" and "x-github-event" in headers:
        facts["event"] = headers["x-github-event"]
    await context.submit(
        caller,
        hook.team,
        content if isinstance(content, dict) else {"data": content},
        key=derived_key("webhook", hook.name, id),
        metadata={"webhook": facts},
    )
    await log_unserved(context, caller, hook.team)
    return Response(status_code=202)


def _refused(seen: str) -> ProblemError:
    return ProblemError(401, "not_authenticated", seen)


def _content(content_type: str, body: bytes) -> JsonValue:
    """Return the content of a body: JSON, or the fields of a form. The field `payload` of a form may contain JSON."""
    try:
        if content_type.partition(";")[0].strip().lower() != _FORM_TYPE:
            return parse_json(body)
        fields: dict[str, Any] = dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_MAX_FIELDS))
        return parse_json(fields["payload"].encode()) if "payload" in fields else fields
    except (ContractError, ValueError) as error:
        raise ProblemError(422, "invalid_delivery", f"the body cannot be read: {str(error)[:300]}") from None


def _delivery_id(hook: Hook, headers: dict[str, str], content: JsonValue, body: bytes) -> str:
    """Return the id that all repetitions of a delivery have. Without an id, return a digest of the signed content."""
    named = content if isinstance(content, dict) else {}
    match hook.form:
        case "standard":
            return headers["webhook-id"][:1_000]
        case "github":
            return headers["x-github-delivery"][:1_000]
        case "stripe":
            given = named.get("id")
        case "slack":
            given = named.get("event_id")
    if isinstance(given, str) and given:
        return given
    return stable_digest(headers.get("x-slack-request-timestamp", "").encode() + b":" + body)
