"""Generate the AsyncAPI 3.0 document of the bus from one table of channels, with the subjects that `Subjects` builds.

AsyncAPI's NATS binding describes only queue groups of core NATS. So the streams and durable consumers of JetStream are
in `x-jetstream` fields.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pointsman_schemas.events import (
    Audit,
    Cancellation,
    Control,
    DeadLetter,
    Delta,
    Event,
    Handoff,
    Outcome,
    Progress,
    Question,
    Request,
    Result,
    Step,
    Timer,
    UserMessages,
)
from pointsman_schemas.ids import TOKEN_PATTERN
from pointsman_schemas.log import Commit
from pointsman_schemas.schedules import ScheduleChange, ScheduleRecord, ScheduleTimer
from pointsman_schemas.subjects import Subjects
from pointsman_schemas.threads import ThreadRecord

__all__ = ["EVENTS", "document"]

EVENTS: tuple[type[Event], ...] = (
    Request,
    Handoff,
    Step,
    Result,
    Control,
    Question,
    UserMessages,
    Cancellation,
    Timer,
    Progress,
    Delta,
    Commit,
    Outcome,
    DeadLetter,
    ThreadRecord,
    ScheduleChange,
    ScheduleTimer,
    ScheduleRecord,
    Audit,
)
"""All events, in the order in which they occur in a workflow. The last five events do not belong to a workflow."""

_CONTRACT_VERSION = "1.0.0"  # a new version of an event raises the major number, an addition raises the minor number
_ATTEMPT = 1_000_000_007  # stands for {attempt} in an address, because the builders need a number
_SUBJECTS = Subjects("_namespace_")  # builds subjects with parts such as `_team_`, which `_address` writes as `{team}`

_PARAMETERS = {
    "namespace": "The tenant; `pointsman` unless configured.",
    "team": "The team's name.",
    "agent": "The agent's name.",
    "workflow": "The workflow's id.",
    "thread": "The id of the thread, unique for its team and caller.",
    "schedule": "The name of the schedule, unique for its team and caller.",
    "task": "The task's id, unique within its workflow.",
    "attempt": "The attempt's number, from 1.",
    "number": "The number of the newest message, from 1.",
    "name": "The event's name, unique within its workflow.",
    "id": "An id that the sender chooses.",
    "caller": "The name of the caller's user at the broker.",
    "action": "The command.",
    "actor": "The name of the user at the broker, or of the team of a parent workflow.",
    "token": "The token of the attempt, from the handoff's `return_to`.",
    "origin": "The team or agent that could not process the event.",
}


@dataclass(frozen=True, slots=True)
class _Channel:
    """One kind of subject.

    Attributes:
        name: The name of the channel.
        address: The subject, with `_name_` in place of `{name}`.
        stream: The stream without its prefix; None for core NATS.
        description: The description.
        events: The events on the subject.
        senders: Pairs of peer and purpose.
        receivers: Pairs of peer and purpose.
        consumer: The durable consumer that the receivers share; None if they share no consumer.
        consumes: The filter of the consumer, if it differs from the address.
    """

    name: str
    address: str
    stream: str | None
    description: str
    events: tuple[type[Event], ...]
    senders: tuple[tuple[str, str], ...]
    receivers: tuple[tuple[str, str], ...]
    consumer: str | None = None
    consumes: str | None = None


_CHANNELS = (
    _Channel(
        "requests",
        _SUBJECTS.request("_team_", "_caller_"),
        "REQUESTS",
        "Requests of callers to a team. Bare JSON without headers is accepted. If a request "
        "has the header `ce-id` or, without it, `Nats-Msg-Id`, the request starts only one workflow, even if "
        "it is sent twice.",
        (Request,),
        (("caller", "Start a workflow."),),
        (("supervisor", "Start a workflow, once."),),
        consumer="request-{team}",
    ),
    _Channel(
        "handoffs",
        _SUBJECTS.handoff("_agent_", "_team_", "_workflow_", "_task_", _ATTEMPT),
        "WORK",
        "One attempt at one task, for one agent. Each attempt has its own subject, so a "
        "handoff that is sent twice is stored once. In a namespace with POINTSMAN_UNSYNCED_HANDOFFS the "
        "stream is {NAMESPACE}_HANDOFFS. A handoff with the header `pointsman-resent` might already have a "
        "result, so look for the result first. If the result of a task is no longer needed, a cancellation "
        "replaces the handoff of the task. Acknowledge the cancellation.",
        (Handoff, Cancellation),
        (("supervisor", "Send a task to an agent."),),
        (("agent", "Do the task, publish its result on `return_to`, then acknowledge."),),
        consumer="agent-{agent}",
        consumes=_SUBJECTS.agent_handoffs("_agent_"),
    ),
    _Channel(
        "steps",
        _SUBJECTS.step("_agent_", "_team_", "_workflow_", "_task_", _ATTEMPT, "_name_"),
        "RESULTS",
        "An answer of a model or a result of a tool within an attempt. Publish a step with "
        "`Nats-Expected-Last-Subject-Sequence: 0` before you act on the answer or the result. A redelivered "
        "attempt continues after its stored steps.",
        (Step,),
        (("agent", "Store a step of a tool loop."),),
        (("agent", "Continue an attempt whose worker has died."),),
    ),
    _Channel(
        "results",
        _SUBJECTS.result("_team_", "_agent_", "_workflow_", "_task_", _ATTEMPT, "_token_"),
        "RESULTS",
        "The result of one attempt. The subject is the handoff's `return_to`. Publish with "
        "`Nats-Expected-Last-Subject-Sequence: 0`, so that only the first result is stored.",
        (Result,),
        (("agent", "Publish the result of the attempt."),),
        (("supervisor", "Accept the result if its attempt is the current one."),),
        consumer="result-{team}",
        consumes=_SUBJECTS.team_results("_team_"),
    ),
    _Channel(
        "controls",
        _SUBJECTS.control("_team_", "_workflow_", "_action_", "_actor_", "_id_"),
        "CONTROLS",
        "Commands of a person or a system to a running workflow. The body repeats the action. "
        "A command about a schedule has the action `schedule` or `schedule-others`, and the id of the "
        "schedule instead of the workflow.",
        (Control, ScheduleChange),
        (("caller", "Control a running workflow, or change a schedule."),),
        (("supervisor", "Execute the command, once."),),
        consumer="control-{team}",
        consumes=_SUBJECTS.team_controls("_team_"),
    ),
    _Channel(
        "audits",
        _SUBJECTS.audit("_action_", "_actor_", "_id_"),
        "CONTROLS",
        "Records of operations that the log of a workflow does not record. The body repeats the action.",
        (Audit,),
        (("caller", "Record an operation."),),
        (("reader", "List the operations."),),
    ),
    _Channel(
        "timers",
        _SUBJECTS.timer("_team_", "_workflow_", "_name_"),
        "WORK",
        "A timer that fired. The broker publishes the timer from a scheduled message of the "
        "same workflow. The supervisor refuses any other message. The timer of a schedule has the id of the "
        "schedule instead of the workflow.",
        (Timer, ScheduleTimer),
        (),
        (("supervisor", "Check the deadlines of the workflow, or the times of the schedule."),),
        consumer="timer-{team}",
        consumes=_SUBJECTS.team_timers("_team_"),
    ),
    _Channel(
        "timerSchedules",
        _SUBJECTS.schedule("_team_", "_workflow_", "_name_"),
        "WORK",
        "A timer as a scheduled message of JetStream. `Nats-Schedule-Target` is the subject on "
        "which the broker publishes the timer.",
        (Timer, ScheduleTimer),
        (("supervisor", "Schedule a timer."),),
        (),
    ),
    _Channel(
        "handoffSchedules",
        _SUBJECTS.retry("_team_", "_workflow_", "_name_"),
        "WORK",
        "The delayed handoff of a retry, as a scheduled message of JetStream in the stream of "
        "handoffs. An empty message on the same subject cancels the delayed handoff.",
        (Handoff,),
        (("supervisor", "Schedule a handoff."),),
        (),
    ),
    _Channel(
        "logs",
        _SUBJECTS.log("_team_", "_workflow_"),
        "LOG",
        "A workflow's log, which is its state. Each commit is stored by compare-and-set.",
        (Commit,),
        (("supervisor", "Store a decision."),),
        (("reader", "Read the state of a workflow, or follow it."),),
    ),
    _Channel(
        "events",
        _SUBJECTS.event("_team_", "_workflow_", "_agent_", "_name_"),
        "RESULTS",
        "Reports of agents about running attempts. The reports are kept as long as the log.",
        (Progress,),
        (("agent", "Report progress, a tool call, a model call or a domain event."),),
        (("reader", "Follow a workflow."),),
    ),
    _Channel(
        "threads",
        _SUBJECTS.thread("_team_", "_caller_", "_thread_"),
        "LOG",
        "The record of a thread. Each message is the whole thread, stored by compare-and-set.",
        (ThreadRecord,),
        (("supervisor", "Admit a turn, or record its end."),),
        (("reader", "Read the turns of a thread."),),
    ),
    _Channel(
        "messages",
        _SUBJECTS.message("_agent_", "_team_", "_workflow_", _ATTEMPT).replace(str(_ATTEMPT), "_number_"),
        "LOG",
        "All messages to a workflow so far, for an agent that works on one of its tasks. "
        "`number` is the number of the newest message.",
        (UserMessages,),
        (("supervisor", "Send the messages to an agent with a running attempt."),),
        (("agent", "Read the newest messages between two steps of an attempt."),),
    ),
    _Channel(
        "schedules",
        _SUBJECTS.cron("_team_", "_caller_", "_schedule_"),
        "LOG",
        "The record of a schedule. Each message is the whole schedule, stored by compare-and-set.",
        (ScheduleRecord,),
        (("supervisor", "Decide on a command, a fire or the end of a run."),),
        (("reader", "Read the times and the runs of a schedule."),),
    ),
    _Channel(
        "questions",
        _SUBJECTS.question("_team_", "_workflow_", "_id_"),
        "LOG",
        "A question to a person. The question is open until a control event answers the question, or until the "
        "question expires.",
        (Question,),
        (("supervisor", "Ask a person."),),
        (
            (
                "reader",
                "Show the question to a person, and publish the answer on a subject that begins with `reply_to`.",
            ),
        ),
    ),
    _Channel(
        "cancellations",
        _SUBJECTS.cancelled("_team_", "_workflow_"),
        None,
        "Tasks whose results are no longer needed. Only current subscribers receive the message (core NATS).",
        (Cancellation,),
        (("supervisor", "Let agents stop early."),),
        (("agent", "Stop the attempt."),),
    ),
    _Channel(
        "deltas",
        _SUBJECTS.delta("_team_", "_workflow_", "_agent_"),
        None,
        "Text that a model is writing. Only current subscribers receive the message (core NATS).",
        (Delta,),
        (("agent", "Publish the text while it is written."),),
        (("reader", "Show the text while it is written."),),
    ),
    _Channel(
        "outcomes",
        _SUBJECTS.outcome("_team_", "_workflow_"),
        "LOG",
        "The one final answer of a workflow.",
        (Outcome,),
        (("supervisor", "Publish the answer, once."),),
        (("caller", "Read the answer."),),
    ),
    _Channel(
        "deadLetters",
        _SUBJECTS.dead_letter("_origin_", "_workflow_", "_id_"),
        "DEAD",
        "An event that could not be processed, with the cause. The workflow is `none` if it is unknown.",
        (DeadLetter,),
        (
            ("supervisor", "Store an event that cannot be processed."),
            ("agent", "Store a handoff that cannot be processed."),
        ),
        (("reader", "List, replay or delete dead letters."),),
    ),
)


def document(schemas: Mapping[str, str]) -> dict[str, Any]:
    """Generate the AsyncAPI document. The payloads in the document refer to the schema files in the same folder.

    Args:
        schemas: The schema files of models that are only parts of messages, by the names of the models.

    Returns:
        The document as JSON data.
    """
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Pointsman",
            "version": _CONTRACT_VERSION,
            "description": "The messages between the processes of Pointsman over NATS JetStream. The id of an "
            "operation begins with the peer that performs the operation. A caller is any system that "
            "publishes requests. An agent is any process that consumes the handoffs for an agent's name.",
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
            "schemas": {name: {"$ref": file} for name, file in schemas.items()},
        },
        "x-jetstream": {
            "streams": {
                f"{{NAMESPACE}}_{kind}": {"retention": "limits", "subjects": subjects}
                for kind, subjects in _subjects_by_stream().items()
            },
            "buckets": {
                "{NAMESPACE}_AGENTS": "Key-value bucket. The key `{agent}.{instance}` has the AgentCard of a live "
                "instance, and each heartbeat of the instance writes the card again. An entry is ignored if "
                "its key differs from the name and the instance of the card, or if the card has more than "
                "65,536 bytes.",
                "{NAMESPACE}_ARTIFACTS": "Object store (ADR-20) of the bodies that are too large for a message. The "
                "name of an object contains the SHA-256 of the body.",
            },
            "NAMESPACE": "The namespace in capitals.",
        },
    }


def _channel(channel: _Channel) -> dict[str, Any]:
    address = _address(channel.address)
    described: dict[str, Any] = {
        "address": address,
        "description": channel.description,
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
    if action == "receive" and channel.consumer:
        # There is no binding, because a `queue` of the NATS binding is a queue group of core NATS, without
        # acknowledgements.
        operation["x-jetstream"] = {
            "stream": f"{{NAMESPACE}}_{channel.stream}",
            "consumer": {
                "durable_name": channel.consumer,
                "type": "pull",
                "ack_policy": "explicit",
                "filter_subject": _address(channel.consumes or channel.address),
                "description": "One durable consumer for all processes with the same name. Acknowledge each message.",
            },
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
        "description": "CloudEvents 1.0 NATS binding in binary mode. Values are percent-encoded, and names "
        "may be in upper or lower case. Structured mode (`Content-Type: application/cloudevents+json`) is "
        "also accepted.",
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
            "ce-correlationid": {
                "type": "string",
                "description": "The caller's id, which every event of the workflow has.",
            },
            "ce-causationid": {"type": "string", "description": "The id of the event that caused this one."},
            "ce-dataref": {
                "type": "string",
                "pattern": "^nats-object://[^/]+/[^/?]+\\?size=[0-9]+&sha256=[0-9a-f]{64}$",
                "description": "For a message without a body: the URL of the body in the object store, with "
                "the size and the digest of the body.",
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
    return re.sub(r"_([a-z]+)_", r"{\1}", subject.replace(str(_ATTEMPT), "_attempt_"))
