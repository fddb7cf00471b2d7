"""Decode messages of the bus to inputs of the core.

For a message that cannot be read, `read_input` and `read_child_request` raise a `ContractError` with the problem.
`read_request` returns a `RequestRefused` instead.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from dataclasses import replace
from datetime import datetime
from typing import TypeAlias, assert_never

from pydantic import BaseModel, ValidationError

from pointsman.core.model.inputs import (
    Admission,
    ControlReceived,
    RequestReceived,
    RequestRefused,
    ResultReceived,
    TimerFired,
)
from pointsman.core.tasks.child_workflow import child_request
from pointsman.engine.log.reader import as_async_generator
from pointsman.engine.process.handoff_codec import decode_handoff
from pointsman.ports.bus import Bus, StoredMessage
from pointsman.telemetry import parse_traceparent, reserve_context
from pointsman.telemetry.trace_context import new_id
from pointsman_schemas.envelope import Envelope, decode, read_identity
from pointsman_schemas.errors import ContractError, UndecodableEventError, UnknownEventTypeError
from pointsman_schemas.events import AttemptError, Control, ErrorKind, Request, Result, Timer
from pointsman_schemas.ids import (
    MAX_CALLER_ID_CHARS,
    as_token,
    caller_id,
    child_id_for,
    stable_digest,
    team_caller,
    token,
    workflow_id_for,
)
from pointsman_schemas.log import Parent, TraceOrigin
from pointsman_schemas.strict_json import parse, parse_json, replace_surrogate_escapes
from pointsman_schemas.subjects import ControlAddress, HandoffAddress, ResultAddress, Subjects, TimerAddress
from pointsman_schemas.team import Team
from pointsman_schemas.unknown_fields import find_unknown_fields

__all__ = [
    "InputAddress",
    "correlation_id_of_request",
    "failed_result_for",
    "find_request",
    "input_address",
    "read_child_request",
    "read_input",
    "read_request",
    "recent_requests",
    "workflow_id_of",
    "workflow_of_request",
]

_MAX_IGNORED_FIELDS = 20
_MAX_NAME_CHARS = 200
_SEARCH_WINDOW = 20_000  # maximum number of requests that a search reads, which takes about a second

InputAddress: TypeAlias = ResultAddress | ControlAddress | TimerAddress
"""The parts of the subject of an input of a running workflow."""


def read_request(stored: StoredMessage, team: Team) -> RequestReceived | RequestRefused:
    """Return the request of a message in one of three forms: CloudEvents binary, structured, or bare JSON.

    If the request cannot be read, return a `RequestRefused`. Its workflow begins and ends at once, because the caller
    must receive an outcome.
    """
    envelope: Envelope | None = None
    body = b""
    try:
        envelope, body = decode(stored.headers, stored.body)
        _check_event_type(envelope, Request.event_type)
        request = parse(Request, body)
        _check_reply_to(request.reply_to)
        token(stored.subject.rpartition(".")[2], "the caller, the last token of the subject,")
        admission = _admission(stored, team, envelope, request, stable_digest(body))
        caller_id(admission.request_id, "request id")
        caller_id(admission.correlation_id, "correlation id")
    except ContractError as error:
        # The digest includes the error, because a sender may correct only a header and send the body unchanged. The
        # corrected request must not count as a copy of the refused request.
        digest = stable_digest(str(error).encode("utf-8", "replace") + stored.body)
        admission = _readable(_admission(stored, team, envelope, None, digest, body))
        refusal = AttemptError(kind=error.kind, message=str(error))
        return RequestRefused(admission, refusal, _readable_reply_to(body))
    return RequestReceived(admission, request, _ignored_fields(body))


def _ignored_fields(body: bytes) -> tuple[str, ...]:
    """Return the first unknown fields of a request's body, each with the name that the sender probably meant."""
    content = parse_json(body)
    unknown = find_unknown_fields(Request, content) if isinstance(content, dict) else []
    return tuple(str(each)[:_MAX_NAME_CHARS] for each in unknown[:_MAX_IGNORED_FIELDS])


def read_child_request(
    stored: StoredMessage, team: Team, subjects: Subjects, now: datetime
) -> RequestReceived | RequestRefused:
    """Return the request of a handoff to the team. If the request is refused, the parent's task fails with the reason.

    Raises:
        ContractError: The handoff is unreadable, so no result can be sent to the parent.
    """
    envelope, handoff = decode_handoff(stored, subjects)
    admission = Admission(
        workflow_id=child_id_for(team.name, handoff.workflow_id, handoff.task_id, handoff.attempt),
        request_id=envelope.id,
        correlation_id=envelope.correlation_id or envelope.id,
        team=team,
        trace=_trace_origin(envelope, {}),
        caller=team_caller(handoff.from_agent),
        secret=new_id(16),
        parent=Parent(
            team=handoff.from_agent,
            workflow_id=handoff.workflow_id,
            task_id=handoff.task_id,
            attempt=handoff.attempt,
            return_to=handoff.return_to,
            deadline=handoff.deadline,
        ),
        depth=handoff.depth + 1,
        history=handoff.history,
        messages=handoff.messages,
    )
    try:
        caller_id(admission.request_id, "event id of the handoff")
        caller_id(admission.correlation_id, "correlation id")
    except ContractError as error:
        return RequestRefused(_readable(admission), AttemptError(kind=error.kind, message=str(error)))
    request = child_request(handoff, team, now)
    return RequestReceived(admission, request) if isinstance(request, Request) else RequestRefused(admission, request)


def _readable(admission: Admission) -> Admission:
    """Return the admission of a refused request with ids that are valid in headers and logs.

    The workflow id is computed from the original ids, so two refused requests never share a workflow.
    """
    return replace(admission, request_id=_shown(admission.request_id), correlation_id=_shown(admission.correlation_id))


def _shown(value: str) -> str:
    return value.encode("utf-8", "backslashreplace").decode()[:MAX_CALLER_ID_CHARS]


def _check_reply_to(subject: str | None) -> None:
    """Raise `ContractError` if `subject` is not an inbox. Other programs could read the outcome on another subject."""
    if subject is not None and not (subject.startswith("_INBOX.") and all(subject.split("."))):
        raise ContractError(
            f"reply_to is {subject!r}; expected the inbox of the caller: _INBOX. and tokens separated by dots"
        )


def _admission(
    stored: StoredMessage,
    team: Team,
    envelope: Envelope | None,
    request: Request | None,
    digest: str,
    unread: bytes = b"",
) -> Admission:
    """Return the admission of a request, or of the body `unread`, which cannot be read as a request."""
    headers = {name.lower(): value for name, value in stored.headers.items()}
    request_id, source = _request_identity(stored, envelope, headers)
    return Admission(
        workflow_id=workflow_id_for(stored.subject, request_id, source),
        request_id=request_id,
        correlation_id=_correlation_id(stored, envelope, request, request_id, unread),
        team=team,
        trace=_trace_origin(envelope, headers),
        caller=as_token(stored.subject.rpartition(".")[2]),
        secret=new_id(16),
        digest=digest,
    )


def _correlation_id(
    stored: StoredMessage, envelope: Envelope | None, request: Request | None, request_id: str, unread: bytes = b""
) -> str:
    identity = read_identity(stored.headers, stored.body) if envelope is None else None
    found = identity.correlation_id if identity else envelope.correlation_id if envelope else None
    return found or (request.correlation_id if request else _text_field(unread, "correlation_id")) or request_id


def _text_field(body: bytes, name: str) -> str | None:
    """Return a text field of a body that cannot be read as a request; None if the field is missing or not a text."""
    with suppress(ContractError):
        content = parse_json(body) if body else None
        value = content.get(name) if isinstance(content, dict) else None
        return caller_id(value, name) if isinstance(value, str) else None
    return None


def _readable_reply_to(body: bytes) -> str | None:
    """Return the reply subject of a refused request, because the caller must receive the outcome."""
    with suppress(ContractError, ValidationError):
        subject = _text_field(body, "reply_to")
        _check_reply_to(subject)
        return Request(input="x", reply_to=subject).reply_to
    return None


def _request_identity(stored: StoredMessage, envelope: Envelope | None, headers: Mapping[str, str]) -> tuple[str, str]:
    """Return the id of a request and the source within which the id is unique."""
    if envelope:
        return envelope.id, envelope.source
    identity = read_identity(stored.headers, stored.body)
    own_id = identity.id or headers.get("nats-msg-id")
    # The id includes the time, because sequences begin at 1 again when a stream is created again.
    own_id = own_id or f"sequence-{stored.sequence}-{stored.at:%Y%m%dT%H%M%S.%fZ}"
    return own_id, identity.source


def workflow_of_request(stored: StoredMessage) -> str:
    """Return the id of the workflow that a request starts."""
    envelope: Envelope | None = None
    with suppress(ContractError):
        envelope, _ = decode(stored.headers, stored.body)
    headers = {name.lower(): value for name, value in stored.headers.items()}
    return workflow_id_for(stored.subject, *_request_identity(stored, envelope, headers))


def correlation_id_of_request(stored: StoredMessage) -> str:
    """Return the correlation id of the workflow that a request starts."""
    envelope: Envelope | None = None
    request: Request | None = None
    body = b""
    with suppress(ContractError):
        envelope, body = decode(stored.headers, stored.body)
        request = parse(Request, body)
    headers = {name.lower(): value for name, value in stored.headers.items()}
    return _correlation_id(stored, envelope, request, _request_identity(stored, envelope, headers)[0], body)


def workflow_id_of(stored: StoredMessage, team: str, subjects: Subjects) -> str | None:
    """Return the id of the workflow of `team` to which a message belongs; None if the message has no workflow."""
    with suppress(ContractError):
        match stored.subject.split(".", 2)[1]:
            case "request":
                return workflow_of_request(stored)
            case "handoff":
                parent = subjects.parse(stored.subject, HandoffAddress)
                return child_id_for(team, parent.workflow, parent.task, parent.attempt)
            case _:
                return input_address(stored.subject, subjects).workflow
    return None


def input_address(subject: str, subjects: Subjects) -> InputAddress:
    """Parse the subject of a result, of a control event or of a timer.

    Args:
        subject: A subject.
        subjects: The subjects of the namespace.

    Returns:
        The parts of the subject.

    Raises:
        ContractError: The subject is of another kind, or has another form.
    """
    match subjects.kind_of(subject):
        case "result":
            return subjects.parse(subject, ResultAddress)
        case "control":
            return subjects.parse(subject, ControlAddress)
        case _:
            return subjects.parse(subject, TimerAddress)


async def recent_requests(bus: Bus, requests: str) -> AsyncGenerator[StoredMessage, None]:
    """Yield the requests on the subject `requests` (wildcards allowed) among the last messages of their stream.

    The oldest request comes first. If you leave the generator early, wrap the generator in `aclosing`.
    """
    if (last := await bus.last("requests", requests)) is None:
        return
    async with aclosing(
        as_async_generator(bus.read("requests", requests, after=max(0, last.sequence - _SEARCH_WINDOW)))
    ) as messages:
        async for stored in messages:
            yield stored


async def find_request(bus: Bus, requests: str, workflow: str, *, after: int | None = None) -> StoredMessage | None:
    """Return the request that starts `workflow`; None if no such request is found.

    With `after`, all requests with a greater sequence are searched. Without `after`, only the requests that
    `recent_requests` yields are searched.
    """
    found = (
        recent_requests(bus, requests)
        if after is None
        else as_async_generator(bus.read("requests", requests, after=after))
    )
    async with aclosing(found) as messages:
        async for stored in messages:
            if workflow_of_request(stored) == workflow:
                return stored
    return None


def _trace_origin(envelope: Envelope | None, headers: Mapping[str, str]) -> TraceOrigin:
    """Continue the caller's trace. A missing or broken `traceparent` starts a new trace."""
    given = envelope.traceparent if envelope else headers.get("traceparent")
    state = envelope.tracestate if envelope else headers.get("tracestate")
    parent = parse_traceparent(given, state)
    own = reserve_context(parent)
    return TraceOrigin(
        trace_id=own.trace_id,
        span_id=own.span_id,
        parent_span_id=parent.span_id if parent else None,
        flags=own.flags,
        tracestate=own.tracestate,
    )


def read_input(
    stored: StoredMessage, subjects: Subjects, address: InputAddress | None = None
) -> ResultReceived | ControlReceived | TimerFired:
    """Return the result, control or timer of a message.

    If a text in a result contains an invalid character (half of a surrogate pair), a question mark replaces it.

    Args:
        stored: The message.
        subjects: The subjects of the namespace.
        address: The parts of the subject; None to parse the subject here.

    Raises:
        ContractError: The message cannot be read, or has another type or version.
        UndecodableEventError: The message does not agree with its subject, or a result ends before it starts.
    """
    if address is None:
        address = input_address(stored.subject, subjects)
    try:
        return _read_input(stored, subjects, address)
    except UndecodableEventError:
        repaired = replace_surrogate_escapes(stored.body)
        if not isinstance(address, ResultAddress) or repaired == stored.body:
            raise
    return _read_input(replace(stored, body=repaired), subjects, address)


def _read_input(
    stored: StoredMessage, subjects: Subjects, address: InputAddress
) -> ResultReceived | ControlReceived | TimerFired:
    envelope, body = decode(stored.headers, stored.body)
    event_id = envelope.id if envelope else f"sequence-{stored.sequence}"
    match address:
        case ResultAddress():
            _check_event_type(envelope, Result.event_type)
            return ResultReceived(event_id, _read_result(body, address), address.token)
        case ControlAddress():
            _check_event_type(envelope, Control.event_type)
            control = parse(Control, body)
            _refuse_misnamed(Control, body)
            if control.action != address.action:
                raise UndecodableEventError(
                    f"the action is {control.action!r}, but {address.action!r} in the subject; publish the same action"
                )
            return ControlReceived(event_id, control, address.actor)
        case TimerAddress():
            _check_event_type(envelope, Timer.event_type)
            planned = subjects.schedule(address.team, address.workflow, address.name)
            if stored.scheduled_by != planned:
                raise UndecodableEventError(
                    f"the timer comes from {stored.scheduled_by or 'a client'}; expected the schedule {planned}; only "
                    "the broker may publish a timer"
                )
            return TimerFired(address.name)
        case _:
            assert_never(address)


def _read_result(body: bytes, address: ResultAddress) -> Result:
    result = parse(Result, body)
    said = (result.workflow_id, result.task_id, result.attempt, result.agent)
    addressed = (address.workflow, address.task, address.attempt, address.agent)
    if said != addressed:
        raise UndecodableEventError(
            f"the result is for workflow, task, attempt, agent {said}; its subject is for {addressed}; "
            "publish on the handoff's return_to"
        )
    if result.ended_at < result.started_at:
        raise UndecodableEventError(
            f"ended_at is {result.ended_at.isoformat()}, before started_at, {result.started_at.isoformat()}; "
            "take the two times from one clock that does not step back"
        )
    return result


def _refuse_misnamed(model: type[BaseModel], body: bytes) -> None:
    """Raise `UndecodableEventError` for a misspelled field. If it were ignored, the input of a person would be lost."""
    content = parse_json(body)
    for each in find_unknown_fields(model, content) if isinstance(content, dict) else ():
        if each.meant:
            raise UndecodableEventError(f"a {model.__name__.lower()} event {each.message}")


def failed_result_for(stored: StoredMessage, address: ResultAddress, error: ContractError) -> ResultReceived:
    """Return a failed result for a result that cannot be read, because the attempt failed by a fault of the sender."""
    failed = Result(
        workflow_id=address.workflow,
        task_id=address.task,
        attempt=address.attempt,
        agent=address.agent,
        status="failed",
        error=AttemptError(
            kind=ErrorKind.UNDECODABLE, message=f"the result of {address.agent} cannot be read: {error}"
        ),
        started_at=stored.at,
        ended_at=stored.at,
    )
    return ResultReceived(f"sequence-{stored.sequence}", failed, address.token)


def _check_event_type(envelope: Envelope | None, event_type: str) -> None:
    if envelope is not None and envelope.type != event_type:
        raise UnknownEventTypeError(
            f"the event's type is {envelope.type[:200]!r}; expected {event_type!r} on this subject"
        )
