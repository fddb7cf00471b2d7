"""The AsyncAPI 3.0 document of the bus: one table of channels, with the subjects that `Subjects` builds.

AsyncAPI's NATS binding knows queue groups only, so what JetStream adds stands in `x-jetstream` fields.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from pointsman_schemas.card import AgentCard
from pointsman_schemas.events import (
    Approval,
    Cancellation,
    Control,
    DeadLetter,
    Delta,
    Event,
    Handoff,
    Outcome,
    Progress,
    Request,
    Result,
    Step,
    Timer,
)
from pointsman_schemas.ids import TOKEN_PATTERN
from pointsman_schemas.log import Commit
from pointsman_schemas.subjects import Subjects

__all__ = ["EVENTS", "document"]

EVENTS: tuple[type[Event], ...] = (
    Request,
    Handoff,
    Step,
    Result,
    Control,
    Approval,
    Cancellation,
    Timer,
    Progress,
    Delta,
    Commit,
    Outcome,
    DeadLetter,
)
"""Every event, in the order of a workflow's life."""

_VERSION = "1.0.0"  # of the contract: major when an event's version changes, minor when something is added
_LARGEST = 1_000_000_007  # stands for {attempt} in an address, where the builders want a number
_S = Subjects("_namespace_")  # builds addresses: `_name_` becomes `{name}`

_PARAMETERS = {
    "namespace": "The tenant; `pointsman` unless configured.",
    "team": "The team's name.",
    "agent": "The agent's name.",
    "workflow": "The workflow's id.",
    "task": "The task's id, unique within its workflow.",
    "attempt": "The attempt's number, from 1.",
    "name": "The event's name, unique within its workflow.",
    "id": "An id that the sender makes.",
    "origin": "Who gave up: a team's or an agent's name.",
}


@dataclass(frozen=True, slots=True)
class _Channel:
    """One kind of subject. `senders` and `receivers` are (who, what for); `queue` is the consumer the latter share."""

    name: str
    address: str
    stream: str | None
    what: str
    events: tuple[type[Event], ...]
    senders: tuple[tuple[str, str], ...]
    receivers: tuple[tuple[str, str], ...]
    queue: str | None = None
    consumes: str | None = None


_CHANNELS = (
    _Channel(
        "request",
        _S.request("_team_"),
        "WORK",
        "What callers want of a team. Bare JSON without any header is accepted; `ce-id` or `Nats-Msg-Id` makes a "
        "request that is sent twice one workflow.",
        (Request,),
        (("caller", "Start a workflow."),),
        (("supervisor", "Admit the request, once."),),
        queue="request-{team}",
    ),
    _Channel(
        "handoff",
        _S.handoff("_agent_", "_workflow_", "_task_", _LARGEST),
        "WORK",
        "One attempt at one task, for one agent. The subject is unique to the attempt, so sending twice stores once. "
        "In a namespace made with POINTSMAN_UNSYNCED_HANDOFFS the stream is {NAMESPACE}_HANDOFFS; one with the header "
        "`pointsman-resent` may have been answered: look for its result before beginning.",
        (Handoff,),
        (("supervisor", "Hand a task to an agent."),),
        (("agent", "Do the task; publish its result on `return_to`; then acknowledge."),),
        queue="agent-{agent}",
        consumes=_S.handoffs_of("_agent_"),
    ),
    _Channel(
        "step",
        _S.step("_workflow_", "_task_", _LARGEST, "_name_"),
        "WORK",
        "What a model answered or a tool gave within an attempt. Publish with `Nats-Expected-Last-Subject-Sequence: 0` "
        "before acting on it; an attempt that is delivered again goes on from its steps.",
        (Step,),
        (("agent", "Keep a step of a tool loop."),),
        (("agent", "Continue an attempt whose worker has died."),),
    ),
    _Channel(
        "result",
        _S.result("_team_", "_workflow_", "_agent_", "_task_", _LARGEST),
        "WORK",
        "What came of one attempt. Publish with `Nats-Expected-Last-Subject-Sequence: 0`: the first result counts.",
        (Result,),
        (("agent", "Report what came of the attempt."),),
        (("supervisor", "Count the result if its attempt is the current one."),),
        queue="inbox-{team}",
        consumes=_S.inbox_of("_team_"),
    ),
    _Channel(
        "control",
        _S.control("_team_", "_workflow_", "_id_"),
        "WORK",
        "What a person or a system tells a running workflow.",
        (Control,),
        (("caller", "Steer a running workflow."),),
        (("supervisor", "Obey, once."),),
        queue="inbox-{team}",
        consumes=_S.inbox_of("_team_"),
    ),
    _Channel(
        "timer",
        _S.timer("_team_", "_workflow_", "_name_"),
        "WORK",
        "A timer that fired. The broker publishes it from a schedule.",
        (Timer,),
        (),
        (("supervisor", "Look at the workflow's deadlines."),),
        queue="inbox-{team}",
        consumes=_S.inbox_of("_team_"),
    ),
    _Channel(
        "schedule",
        _S.schedule("_workflow_", "_name_"),
        "WORK",
        "A message for later, by JetStream's message schedules: a timer, or a handoff that waits before a retry. "
        "`Nats-Schedule-Target` names where it will be published.",
        (Timer, Handoff),
        (("supervisor", "Have the broker publish it when its time has come."),),
        (),
    ),
    _Channel(
        "log",
        _S.log("_team_", "_workflow_"),
        "LOG",
        "A workflow's log, which is its state. Each commit is a compare-and-set on the subject's last sequence.",
        (Commit,),
        (("supervisor", "Commit what was decided."),),
        (("reader", "Fold a workflow's state, or follow it."),),
    ),
    _Channel(
        "event",
        _S.event("_workflow_", "_name_"),
        "LOG",
        "What agents report while they work, kept beside the log.",
        (Progress,),
        (("agent", "Report progress, a tool call, a model call or a domain event."),),
        (("reader", "Follow a workflow."),),
    ),
    _Channel(
        "approval",
        _S.approval("_workflow_", "_id_"),
        "LOG",
        "What a workflow waits for a person to allow. It is asked until a control event answers it, or it expires.",
        (Approval,),
        (("supervisor", "Ask a person."),),
        (("reader", "Show it to a person, and publish the answer on `answer_to`."),),
    ),
    _Channel(
        "cancellation",
        _S.live("_workflow_", "cancelled"),
        None,
        "Tasks that nobody waits for any more. Core NATS: whoever listens now hears it, and nothing is kept.",
        (Cancellation,),
        (("supervisor", "Spare the agents the rest of the work."),),
        (("agent", "Stop, if that saves anything."),),
    ),
    _Channel(
        "delta",
        _S.live("_workflow_", "delta"),
        None,
        "Text that a model is writing. Core NATS: whoever listens now hears it, and nothing is kept.",
        (Delta,),
        (("agent", "Show what is being written."),),
        (("reader", "Watch it being written."),),
    ),
    _Channel(
        "outcome",
        _S.outcome("_team_", "_workflow_"),
        "LOG",
        "The one final answer of a workflow.",
        (Outcome,),
        (("supervisor", "Publish the answer, once."),),
        (("caller", "Read the answer."),),
    ),
    _Channel(
        "deadLetter",
        _S.dead("_origin_", "_workflow_", "_id_"),
        "DEAD",
        "An event that nobody could process, with the cause. The workflow is `none` where it is not known.",
        (DeadLetter,),
        (("supervisor", "Give up on an event in the open."), ("agent", "Give up on a handoff in the open.")),
        (("reader", "List, replay or discard."),),
    ),
)


def document() -> dict[str, Any]:
    """The AsyncAPI document as JSON data. Payloads refer to the schema files beside it."""
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Pointsman",
            "version": _VERSION,
            "description": "What the processes of Pointsman say to each other over NATS JetStream. An operation's id "
            "begins with who performs it; anybody who can publish JSON may be a caller, and anybody who consumes "
            "handoffs under a name is an agent.",
        },
        "defaultContentType": "application/json",
        "servers": {
            "development": {
                "host": "localhost:4222",
                "protocol": "nats",
                "description": "A NATS server of API level 3 (2.12) or newer, with JetStream.",
            }
        },
        "channels": {channel.name: _channel(channel) for channel in _CHANNELS},
        "operations": dict(
            operation
            for channel in _CHANNELS
            for action, peers in (("send", channel.senders), ("receive", channel.receivers))
            for operation in (_operation(channel, action, who, why) for who, why in peers)
        ),
        "components": {
            "parameters": {
                name: {"description": f"{what} Of the form `{TOKEN_PATTERN}`."} for name, what in _PARAMETERS.items()
            },
            "messages": {event.__name__: _message(event) for event in EVENTS},
            "messageTraits": {"cloudEvent": {"headers": _headers()}},
            "schemas": {AgentCard.__name__: {"$ref": "./agent-card.schema.json"}},
        },
        "x-jetstream": {
            "streams": {
                f"{{NAMESPACE}}_{kind}": {"retention": "limits", "subjects": subjects}
                for kind, subjects in _subjects_by_stream().items()
            },
            "buckets": {
                "{NAMESPACE}_AGENTS": "Key-value: the AgentCard of every live instance under `{agent}.{instance}`, "
                "refreshed as its heartbeat.",
                "{NAMESPACE}_ARTIFACTS": "Object store (ADR-20): the bodies that do not fit into a message, by the "
                "SHA-256 of their content.",
            },
            "NAMESPACE": "The namespace in capitals.",
        },
    }


def _channel(channel: _Channel) -> dict[str, Any]:
    address = _address(channel.address)
    described: dict[str, Any] = {
        "address": address,
        "description": channel.what,
        "parameters": {name: {"$ref": f"#/components/parameters/{name}"} for name in re.findall(r"\{(\w+)\}", address)},
        "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in _message_names(channel)},
    }
    if channel.stream:
        described["x-jetstream"] = {"stream": f"{{NAMESPACE}}_{channel.stream}"}
    return described


def _operation(channel: _Channel, action: str, who: str, why: str) -> tuple[str, dict[str, Any]]:
    verb = "Sends" if action == "send" else "Receives"
    operation: dict[str, Any] = {
        "action": action,
        "channel": {"$ref": f"#/channels/{channel.name}"},
        "summary": why,
        "tags": [{"name": who}],
        "messages": [{"$ref": f"#/channels/{channel.name}/messages/{name}"} for name in _message_names(channel)],
    }
    if action == "receive" and channel.queue:
        operation["bindings"] = {"nats": {"queue": channel.queue}}
        operation["x-jetstream"] = {
            "consumer": "durable, pull, explicit acknowledgement; one for all processes of the same name",
            "filter": _address(channel.consumes or channel.address),
        }
    return f"{who}{verb}{channel.name[0].upper()}{channel.name[1:]}", operation


def _message_names(channel: _Channel) -> list[str]:
    return [event.__name__ for event in channel.events]


def _message(event: type[Event]) -> dict[str, Any]:
    return {
        "name": event.event_type,
        "title": event.__name__,
        "summary": " ".join((event.__doc__ or "").split("\n\n")[0].split()),
        "traits": [{"$ref": "#/components/messageTraits/cloudEvent"}],
        "payload": {"$ref": f"./{event.short_name()}.schema.json"},
    }


def _headers() -> dict[str, Any]:
    text = {"type": "string"}
    return {
        "type": "object",
        "description": "CloudEvents 1.0 NATS binding, binary mode: values are percent-encoded, names are read in any "
        "case. Structured mode (`Content-Type: application/cloudevents+json`) is accepted as well.",
        "required": ["ce-specversion", "ce-id", "ce-type", "ce-source"],
        "properties": {
            "ce-specversion": {"const": "1.0"},
            "ce-id": text,
            "ce-type": text,
            "ce-source": text,
            "ce-time": {"type": "string", "format": "date-time"},
            "ce-subject": {"type": "string", "description": "The workflow's id."},
            "ce-datacontenttype": {"const": "application/json"},
            "ce-dataschema": {"type": "string", "description": "The `$id` of the body's JSON Schema."},
            "ce-correlationid": {"type": "string", "description": "The caller's id, carried by every event."},
            "ce-causationid": {"type": "string", "description": "The id of the event that caused this one."},
            "ce-dataref": {
                "type": "string",
                "pattern": "^nats-object://[^/]+/[^/?]+\\?size=[0-9]+&sha256=[0-9a-f]{64}$",
                "description": "Where the body of a message that has none is kept, and what it must be.",
            },
            "ce-traceparent": {"type": "string", "description": "W3C trace context of the origin."},
            "traceparent": {"type": "string", "description": "W3C trace context of this hop."},
            "tracestate": text,
        },
    }


def _subjects_by_stream() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for channel in _CHANNELS:
        if channel.stream:
            namespace, name, *rest = _address(channel.address).split(".")
            kind = f"{namespace}.{name}.{'>' if len(rest) > 1 else '*'}"
            kinds = found.setdefault(channel.stream, [])
            if kind not in kinds:
                kinds.append(kind)
    return found


def _address(subject: str) -> str:
    return re.sub(r"_([a-z]+)_", r"{\1}", subject.replace(str(_LARGEST), "_attempt_"))
