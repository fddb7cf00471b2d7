"""Receive CloudEvents over HTTP as requests to teams, in binary, structured or batch mode.

Also answer the handshake, in which a sender of webhooks asks for permission to deliver events.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from email.message import Message
from typing import Annotated, Any, Literal
from urllib.parse import unquote

from fastapi import APIRouter, Header, Path, Request, Response
from pydantic import Base64Bytes, BaseModel, ConfigDict, Field, JsonValue, ValidationError

from pointsman.errors import ContractError, PointsmanError
from pointsman.gateway.callers import Caller
from pointsman.gateway.catalog import log_unserved
from pointsman.gateway.context import CallerArg, Context, ContextArg, derived_key
from pointsman.gateway.problems import ProblemError, problem_of, problems
from pointsman_schemas.ids import MAX_CALLER_ID_CHARS, TOKEN_PATTERN
from pointsman_schemas.strict_json import describe, parse_json

__all__ = ["CloudEvent", "router"]

router = APIRouter(prefix="/v1/events", tags=["events"])

MAX_BATCH_EVENTS = 100
"""Largest number of events in a batch. Each event is published separately, so more events could take longer than a
proxy allows."""
_FORMAT, _BATCH_FORMAT = "application/cloudevents+json", "application/cloudevents-batch+json"
_CHARSETS = ("utf-8", "us-ascii", "iso-8859-1", "iso-8859-15", "windows-1252", "utf-16", "utf-16le", "utf-16be")
"""The accepted charsets of texts. Other codecs of Python, such as `punycode`, could take minutes for a large body."""
_JSON_TYPE = re.compile(r"application/json|[a-z0-9.-]+/[a-z0-9.-]+\+json")
_HOP_EXTENSIONS = frozenset({"traceparent", "tracestate", "knativearrivaltime"})
"""Extensions that the gateway ignores.

These extensions differ between deliveries of one event, but all deliveries of the event must be one request.
"""

TeamPath = Annotated[str, Path(pattern=TOKEN_PATTERN, description="The team that is to serve the event.")]
_NonEmpty = Annotated[str, Field(min_length=1)]


class CloudEvent(BaseModel):
    """A CloudEvent of version 1.0. Further fields are extension attributes."""

    model_config = ConfigDict(
        extra="allow", json_schema_extra={"not": {"required": ["data", "data_base64"]}}, ser_json_bytes="base64"
    )
    __pydantic_extra__: dict[str, bool | int | str | None]  # pyright: ignore[reportIncompatibleVariableOverride]

    specversion: Literal["1.0"] = Field(description="The version of the specification.")
    id: _NonEmpty = Field(description="The id of the event, unique within its source.")
    source: _NonEmpty = Field(description="The context in which the event happened, a URI reference.")
    type: _NonEmpty = Field(description="The kind of event.")
    subject: _NonEmpty | None = Field(default=None, description="The subject of the event within its source.")
    time: _NonEmpty | None = Field(default=None, description="The time of the event.")
    datacontenttype: _NonEmpty | None = Field(default=None, description="The content type of the data.")
    dataschema: _NonEmpty | None = Field(default=None, description="The schema of the data, a URI.")
    data: JsonValue = Field(default=None, description="The data. An object or a text is the input of the team.")
    data_base64: Base64Bytes | None = Field(default=None, description="Binary data, in place of `data`.")

    @property
    def key(self) -> str:
        """The idempotency key, made of id and source, so all deliveries of one event are one request."""
        return derived_key("cloudevent", self.source, self.id)

    @property
    def metadata(self) -> dict[str, JsonValue]:
        """The attributes as metadata of the request. Extensions become texts, because binary mode has only texts."""
        core = self.model_dump(exclude_none=True, exclude={"specversion", "data", "data_base64"})
        extensions = self.model_extra or {}
        given = {name: core[name] for name in core if name not in extensions}
        given |= {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in extensions.items()
            if value is not None and name not in _HOP_EXTENSIONS
        }
        return {"cloudevent": given}

    @property
    def input(self) -> str | dict[str, JsonValue]:
        """The input of the team: an object or a text unchanged, other data as a field of an object."""
        if self.data_base64 is not None:
            return _input_of_bytes(self.data_base64, self.datacontenttype or "application/octet-stream")
        return _input_of_value(self.data)


class AcceptedEvent(BaseModel):
    """An event that was accepted."""

    id: str = Field(description="The id of the event.")
    source: str = Field(description="The source of the event.")
    workflow_id: str = Field(description="The workflow that serves the event.")


class AcceptedBatch(BaseModel):
    """A batch whose events were all accepted."""

    events: list[AcceptedEvent] = Field(description="The events, in the order of the batch.")


_BODIES = {
    _FORMAT: {"schema": {"$ref": "#/components/schemas/CloudEvent"}},
    _BATCH_FORMAT: {
        "schema": {
            "type": "array",
            "maxItems": MAX_BATCH_EVENTS,
            "items": {"$ref": "#/components/schemas/CloudEvent"},
        }
    },
}


@router.post(
    "/{team}",
    status_code=202,
    summary="Deliver CloudEvents",
    description="Store a CloudEvent as a request to a team. In binary mode, the headers `ce-id`, `ce-source`, "
    "`ce-type`, `ce-specversion` and the `ce-` headers of other attributes describe the body. The body "
    "may have any content type. A repeated event with the same id and source starts no second workflow. "
    "The answer to a batch is 200 if every event was accepted. Otherwise, `errors` of the problem lists the "
    "refused events. Then deliver the refused events or the whole batch again.",
    response_class=Response,
    response_model=None,
    openapi_extra={"requestBody": {"required": True, "content": _BODIES}},
    responses={
        200: {"model": AcceptedBatch, "description": "Every event of the batch is stored."},
        202: {
            "description": "The event is stored, and its workflow will have exactly one outcome.",
            "headers": {"Location": {"description": "The path of the workflow.", "schema": {"type": "string"}}},
        },
        **problems(415),
    },
)
async def deliver_event(team: TeamPath, request: Request, context: ContextArg, caller: CallerArg) -> Response:
    """Store events as requests to a team."""
    caller.require_team(team)
    mode, content_type = _mode_of(request)
    body = await request.body()
    if mode == "batch":
        return await _deliver_batch(team, _batch_of(body), request, context, caller)
    event = _binary_event(request, content_type, body) if mode == "binary" else _structured_event(mode, body)
    workflow = await _submit(team, event, context, caller)
    await log_unserved(context, caller, team)
    # No body, because a broker of Knative refuses a body that is not an event, and Dapr reads a status from a body.
    return Response(status_code=202, headers={"location": f"/v1/workflows/{workflow}"})


@router.options(
    "/{team}",
    summary="Ask for permission to deliver CloudEvents",
    description="The handshake of CloudEvents webhooks. Send the same key as with the deliveries.",
    response_class=Response,
    response_model=None,
    responses={
        200: {
            "description": "The caller may deliver events.",
            "headers": {
                "WebHook-Allowed-Origin": {"description": "The requested origin.", "schema": {"type": "string"}},
                "WebHook-Allowed-Rate": {
                    "description": "Requests in a minute, or `*` for any number.",
                    "schema": {"type": "string"},
                },
            },
        },
        **problems(),
    },
)
async def allow_deliveries(
    team: TeamPath,
    caller: CallerArg,
    webhook_request_origin: Annotated[
        str | None,
        Header(pattern=r"^[A-Za-z0-9.:_-]{1,253}$", description="The name of the sending system, such as a DNS name."),
    ] = None,
) -> Response:
    """Allow a sender to deliver events to a team."""
    caller.require_team(team)
    headers = {"allow": "OPTIONS, POST"}
    if webhook_request_origin is not None:
        rate = caller.limits.requests_per_minute
        headers |= {
            "webhook-allowed-origin": webhook_request_origin,
            "webhook-allowed-rate": "*" if rate is None else str(rate),
        }
    return Response(status_code=200, headers=headers)


def _mode_of(request: Request) -> tuple[Literal["binary", "structured", "bare", "batch"], str]:
    """Return the mode of a request and the content type of its body. In the mode `bare`, the body may be any JSON."""
    given = request.headers.get("content-type", "")
    kind, charset = _content_type(given)
    if kind.startswith("application/cloudevents"):
        if kind not in (_FORMAT, _BATCH_FORMAT) or charset not in ("utf-8", "us-ascii"):
            raise _unknown_format(f"the format {given[:200]!r} is not a format of CloudEvents that the gateway reads")
        return ("batch" if kind == _BATCH_FORMAT else "structured"), kind
    if "ce-specversion" in request.headers or "ce-id" in request.headers:
        return "binary", given
    if not kind or _JSON_TYPE.fullmatch(kind):
        return "bare", kind
    raise _unknown_format(
        f"the content type is {given[:200]!r}, and the headers of an event in binary mode are missing"
    )


def _unknown_format(seen: str) -> ProblemError:
    return ProblemError(
        415,
        "unknown_format",
        f"{seen}; send {_FORMAT}, {_BATCH_FORMAT}, or binary mode with ce-specversion, ce-id, ce-source and ce-type",
        headers={"accept": f"{_FORMAT}, {_BATCH_FORMAT}"},
    )


def _content_type(given: str) -> tuple[str, str]:
    """Return the media type and the charset of a content type; utf-8 for a type without a charset."""
    kind = given.partition(";")[0].strip().lower()
    message = Message()
    message["content-type"] = given
    charset = message.get_param("charset", "utf-8")
    return kind, charset.lower() if isinstance(charset, str) else ""


def _structured_event(mode: str, body: bytes) -> CloudEvent:
    value = _json(body, "the event")
    if mode == "bare" and not (isinstance(value, dict) and "specversion" in value):
        raise _unknown_format("the body is JSON without `specversion`, and the headers of binary mode are missing")
    return _event(value)


def _batch_of(body: bytes) -> Sequence[JsonValue]:
    value = _json(body, "the batch")
    if not isinstance(value, list):
        raise ProblemError(422, "invalid_event", f"a batch is a list of events; send one event as {_FORMAT}")
    if len(value) > MAX_BATCH_EVENTS:
        raise ProblemError(
            422, "too_many_events", f"the batch has {len(value)} events; send at most {MAX_BATCH_EVENTS} in one batch"
        )
    return value


def _binary_event(request: Request, content_type: str, body: bytes) -> CloudEvent:
    attributes: dict[str, Any] = {}
    for name, value in request.headers.items():
        if name.startswith("ce-"):
            attributes[name.removeprefix("ce-")] = _header_text(name, value)
    for name in ("data", "data_base64", "datacontenttype"):
        if name in attributes:
            raise ProblemError(422, "invalid_event", f"ce-{name} is not an attribute; send the data as the body")
    event = _event({**attributes, "datacontenttype": content_type or None})
    if body:
        given = _input_of_bytes(body, content_type or "application/json")
        event.data = given
    return event


def _header_text(name: str, value: str) -> str:
    """Return the value of an attribute, without the quotes that some senders add, and percent-decoded."""
    if len(value) > 1 and value[0] == value[-1] == '"':
        value = re.sub(r"\\(.)", r"\1", value[1:-1])
    try:
        return unquote(value.encode("latin-1").decode(), errors="strict")
    except UnicodeDecodeError:
        raise ProblemError(422, "invalid_event", f"{name} is not UTF-8; send the value percent-encoded") from None


def _event(value: JsonValue) -> CloudEvent:
    try:
        event = CloudEvent.model_validate(value)
    except ValidationError as error:
        raise ProblemError(422, "invalid_event", f"not a CloudEvent 1.0: {describe(error)}") from None
    if event.data is not None and event.data_base64 is not None:
        raise ProblemError(422, "invalid_event", "the event has data and data_base64; send only one of these")
    return event


def _json(body: bytes, what: str) -> JsonValue:
    try:
        return parse_json(body)
    except ContractError as error:
        raise ProblemError(422, "invalid_event", f"{what} cannot be read: {error}") from None


def _input_of_bytes(data: bytes, content_type: str) -> str | dict[str, JsonValue]:
    kind, charset = _content_type(content_type)
    if _JSON_TYPE.fullmatch(kind):
        return _input_of_value(_json(data, "the data"))
    if kind.startswith("text/"):
        with suppress(UnicodeError):
            if charset in _CHARSETS:
                return _input_of_value(data.decode(charset))
        raise ProblemError(422, "invalid_event", f"the data are not text in {charset[:50]!r}; send UTF-8")
    return {"data_base64": b64encode(data).decode()}


def _input_of_value(value: JsonValue) -> str | dict[str, JsonValue]:
    if isinstance(value, dict):
        return value
    if isinstance(value, str) and value:
        return value
    return {} if value is None else {"data": value}


async def _submit(team: str, event: CloudEvent, context: Context, caller: Caller) -> str:
    """Publish the request of an event and return its workflow."""
    correlation = (event.model_extra or {}).get("correlationid")
    if not (isinstance(correlation, str) and 0 < len(correlation) <= MAX_CALLER_ID_CHARS):
        correlation = None
    submitted = await context.submit(
        caller, team, event.input, key=event.key, correlation_id=correlation, metadata=event.metadata
    )
    return submitted.workflow.id


async def _deliver_batch(
    team: str, values: Sequence[JsonValue], request: Request, context: Context, caller: Caller
) -> Response:
    accepted: list[AcceptedEvent] = []
    refused: list[tuple[ProblemError, dict[str, Any]]] = []
    for index, value in enumerate(values):
        try:
            if index:
                # each event counts as a request; the first event was counted as the HTTP request
                request.state.charge()
            event = _event(value)
            workflow = await _submit(team, event, context, caller)
            accepted.append(AcceptedEvent(id=event.id, source=event.source, workflow_id=workflow))
        except PointsmanError as error:
            refused.append((problem_of(error), _refusal(index, value, problem_of(error))))
        except ProblemError as problem:
            refused.append((problem, _refusal(index, value, problem)))
    if accepted:
        await log_unserved(context, caller, team)
    if not refused:
        return Response(AcceptedBatch(events=accepted).model_dump_json(), 200, media_type="application/json")
    raise _batch_problem(refused, len(values))


def _refusal(index: int, value: JsonValue, problem: ProblemError) -> dict[str, Any]:
    names = {name: value.get(name) for name in ("id", "source")} if isinstance(value, Mapping) else {}
    return {"index": index, **names, "status": problem.status, "code": problem.code, "detail": problem.detail}


def _batch_problem(refused: Sequence[tuple[ProblemError, dict[str, Any]]], total: int) -> ProblemError:
    """Return the problem of a batch.

    If an event got the status 500, 503 or 429, the batch gets the same status, so that the sender tries again.
    """
    found = {problem.status for problem, _ in refused}
    status = next((each for each in (500, 503, 429) if each in found), min(found) if len(found) == 1 else 422)
    waits = [int((problem.headers or {}).get("retry-after", 0)) for problem, _ in refused]
    return ProblemError(
        status,
        "events_refused",
        f"{len(refused)} of {total} events were refused and the others were accepted; `errors` lists the refused "
        f"events: deliver these again, or the whole batch",
        headers={"retry-after": str(max(waits))} if max(waits) else {},
        errors=[each for _, each in refused],
    )
