"""Names of spans, attributes and metrics. All OpenTelemetry names that Pointsman uses are defined only here.

The messaging (core 1.44) and GenAI (1.42) conventions are in development, and their names still change. So the names
are copied here, not imported. Names outside the conventions have the prefix `pointsman.`.

The functions return the name and the attributes of each span of a workflow. Ids of workflows are only in attributes,
never in a name, so that a backend can group spans by a small set of names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from pointsman.ports.bus import Server

__all__ = [
    "AGENT_NAME",
    "ATTEMPT",
    "ATTEMPT_FAILED",
    "BROKER_PEER",
    "CIRCUIT_STATE",
    "COMMIT_CONFLICTS",
    "CONSUMED_MESSAGES",
    "CONVERSATION_ID",
    "COST",
    "DEAD_LETTERS",
    "DELIVERED",
    "ERROR_TYPE",
    "EVENT_LOOP_BLOCKED",
    "FALLBACK_USED",
    "HANDOFFS_ACTIVE",
    "HANDOFF_REDELIVERED",
    "LIMIT_REACHED",
    "MODEL_COST",
    "MODEL_DURATION",
    "OPERATION_DURATION",
    "OPERATION_NAME",
    "ORIGIN",
    "PLAN_REJECTED",
    "PROCESS_DURATION",
    "PROVIDER_NAME",
    "QUESTION_ASKED",
    "QUEUE",
    "QUEUE_DEPTH",
    "QUEUE_DURATION",
    "QUEUE_STATE",
    "REASON",
    "REPLANNED",
    "REQUEST_MODEL",
    "RESULT_IGNORED",
    "RETRIES",
    "RETRY_SCHEDULED",
    "ROLE",
    "SENT_MESSAGES",
    "SERVER_ADDRESS",
    "SERVER_PORT",
    "SIGNAL",
    "STATUS",
    "TASK_DURATION",
    "TASK_HELD",
    "TASK_ID",
    "TASK_REOPENED",
    "TEAM",
    "TELEMETRY_DROPPED",
    "TOKEN_TYPE",
    "TOKEN_USAGE",
    "TOOL_DURATION",
    "TOOL_NAME",
    "WEBHOOK_DELIVERIES",
    "WEBHOOK_DISABLED",
    "WEBHOOK_DURATION",
    "WEBHOOK_ENDPOINT",
    "WEBHOOK_EVENT",
    "WEBHOOK_OLDEST_DUE",
    "WORKFLOW_DURATION",
    "WORKFLOW_ID",
    "WORKFLOW_NAME",
    "Attributes",
    "Value",
    "broker_hop",
    "chat",
    "chat_reply",
    "deliver_webhook",
    "destination_template",
    "execute_tool",
    "handoff_duration_attributes",
    "invoke_workflow",
    "process_handoff",
    "process_inputs",
    "publish_request",
    "published_message_attributes",
    "received_messages_attributes",
    "task",
]

Value: TypeAlias = str | bool | int | float | Sequence[str]
Attributes: TypeAlias = Mapping[str, Value | None]
"""Attributes of a span. An attribute with the value None is left out."""

# Common to all
ERROR_TYPE: Final = "error.type"
CONVERSATION_ID: Final = "gen_ai.conversation.id"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"

# GenAI
OPERATION_NAME: Final = "gen_ai.operation.name"
PROVIDER_NAME: Final = "gen_ai.provider.name"
AGENT_NAME: Final = "gen_ai.agent.name"
WORKFLOW_NAME: Final = "gen_ai.workflow.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
TOKEN_TYPE: Final = "gen_ai.token.type"

# Pointsman
WORKFLOW_ID: Final = "pointsman.workflow.id"
TEAM: Final = "pointsman.team"
TASK_ID: Final = "pointsman.task.id"
ATTEMPT: Final = "pointsman.attempt"
ROLE: Final = "pointsman.role"
STATUS: Final = "pointsman.status"
ORIGIN: Final = "pointsman.origin"
REASON: Final = "pointsman.reason"
DELIVERED: Final = "pointsman.delivered"
BROKER_PEER: Final = "pointsman.broker.peer"
"""The connection, server or stream to which a step inside the broker leads."""
QUEUE: Final = "pointsman.queue"
"""A durable consumer: `agent-NAME`, `request-TEAM`, `control-TEAM`, `result-TEAM`, `timer-TEAM`, or one of the webhook
services: `webhook-outcomes`, `webhook-questions`, `webhook-dead-letters` or `webhook-deliveries`."""
QUEUE_STATE: Final = "pointsman.queue.state"
"""`waiting` or `in_flight`."""
WEBHOOK_EVENT: Final = "pointsman.webhook.event"
"""`workflow.ended`, `question.asked` or `dead_letter.stored`."""
WEBHOOK_ENDPOINT: Final = "pointsman.webhook.endpoint"
SIGNAL: Final = "pointsman.signal"
"""`spans`, `logs` or `reports`."""
TOOL_NAME: Final = "gen_ai.tool.name"
COST: Final = "pointsman.usage.cost"
"""US dollars. The conventions have no attribute for money."""

# Span events
QUESTION_ASKED: Final = "pointsman.question_asked"
ATTEMPT_FAILED: Final = "pointsman.attempt_failed"
TASK_HELD: Final = "pointsman.task_held"
FALLBACK_USED: Final = "pointsman.fallback_used"
RETRY_SCHEDULED: Final = "pointsman.retry_scheduled"
TASK_REOPENED: Final = "pointsman.task_reopened"
HANDOFF_REDELIVERED: Final = "pointsman.handoff_redelivered"
RESULT_IGNORED: Final = "pointsman.result_ignored"
PLAN_REJECTED: Final = "pointsman.plan_rejected"
REPLANNED: Final = "pointsman.replanned"
LIMIT_REACHED: Final = "pointsman.limit_reached"

# Metrics
SENT_MESSAGES: Final = "messaging.client.sent.messages"
CONSUMED_MESSAGES: Final = "messaging.client.consumed.messages"
OPERATION_DURATION: Final = "messaging.client.operation.duration"
PROCESS_DURATION: Final = "messaging.process.duration"
MODEL_DURATION: Final = "gen_ai.client.operation.duration"
TOKEN_USAGE: Final = "gen_ai.client.token.usage"
WORKFLOW_DURATION: Final = "gen_ai.workflow.duration"
TASK_DURATION: Final = "gen_ai.invoke_agent.duration"
TOOL_DURATION: Final = "gen_ai.execute_tool.duration"
QUEUE_DURATION: Final = "pointsman.queue.duration"
EVENT_LOOP_BLOCKED: Final = "pointsman.event_loop.blocked"
QUEUE_DEPTH: Final = "pointsman.queue.depth"
CIRCUIT_STATE: Final = "pointsman.circuit.state"
HANDOFFS_ACTIVE: Final = "pointsman.handoffs.active"
MODEL_COST: Final = "pointsman.model.cost"
TELEMETRY_DROPPED: Final = "pointsman.telemetry.dropped"
RETRIES: Final = "pointsman.retries"
DEAD_LETTERS: Final = "pointsman.dead_letters"
COMMIT_CONFLICTS: Final = "pointsman.commit.conflicts"
WEBHOOK_DELIVERIES: Final = "pointsman.webhook.deliveries"
WEBHOOK_DURATION: Final = "pointsman.webhook.duration"
WEBHOOK_DISABLED: Final = "pointsman.webhook.disabled"
WEBHOOK_OLDEST_DUE: Final = "pointsman.webhook.oldest_due"

# For each kind of subject, its template in two parts. The first part is True if the template keeps the third token (a
# team, an agent or an action). The second part is the placeholders after this token.
_DESTINATIONS: Final = {
    "request": (True, ".{caller}"),
    "control": (True, ".{workflow}.{action}.{actor}.{id}"),
    "audit": (True, ".{actor}.{id}"),
    "result": (True, ".{agent}.{workflow}.{task}.{attempt}.{token}"),
    "step": (True, ".{team}.{workflow}.{task}.{attempt}.{name}"),
    "event": (True, ".{workflow}.{agent}.{name}"),
    "handoff": (True, ".{team}.{workflow}.{task}.{attempt}"),
    "handed": (False, ".{instance}.{subject}"),
    "timer": (True, ".{workflow}.{name}"),
    "schedule": (True, ".{workflow}.{kind}.{name}"),
    "log": (True, ".{workflow}"),
    "outcome": (True, ".{workflow}"),
    "question": (True, ".{workflow}.{id}"),
    "message": (True, ".{team}.{workflow}.{number}"),
    "thread": (True, ".{caller}.{thread}"),
    "cron": (True, ".{caller}.{schedule}"),
    "dead": (True, ".{workflow}.{id}"),
    "delivery": (False, ".{endpoint}.{workflow}.{event}.{kind}"),
    "receipt": (False, ".{endpoint}.{workflow}.{event}"),
    "limit": (False, ".{id}"),
    "circuits": (False, ""),
    "cancelled": (True, ".{workflow}"),
    "delta": (True, ".{workflow}.{agent}"),
}
_KEYS: Final = {"$O": "{object}", "$KV": "{instance}"}  # placeholders for the keys of files and of agents' cards
_QUEUES: Final = {
    "request": "request",
    "control": "control",
    "result": "result",
    "timer": "timer",
    "handoff": "agent",
}  # the prefix of the durable consumer's name, by kind of subject
_NATS: Final = "nats"  # not a value of the conventions, but the conventions allow other values


def publish_request(
    namespace: str,
    team: str,
    caller: str,
    *,
    message_id: str | None = None,
    source: str | None = None,
    correlation_id: str | None = None,
    server: Server | None = None,
) -> tuple[str, Attributes]:
    """Return the span of a caller that publishes a request. Kind: producer."""
    subject = f"{namespace}.request.{team}.{caller}"
    return f"publish {namespace}.request.{team}", {
        **_messaging("publish", "send", subject, server, message_id=message_id, correlation_id=correlation_id),
        **_cloudevent(message_id, source, "io.pointsman.request.v1"),
        TEAM: team,
    }


def invoke_workflow(
    team: str, *, workflow_id: str, correlation_id: str | None = None, status: str | None = None
) -> tuple[str, Attributes]:
    """Return the span of a workflow, from its request to its outcome. Kind: internal."""
    return f"invoke_workflow {team}", {
        OPERATION_NAME: "invoke_workflow",
        WORKFLOW_NAME: team,
        TEAM: team,
        WORKFLOW_ID: workflow_id,
        CONVERSATION_ID: correlation_id,
        STATUS: status,
    }


def task(
    role: str,
    agent: str,
    *,
    workflow_id: str,
    task_id: str,
    attempts: int | None = None,
    correlation_id: str | None = None,
    status: str | None = None,
    model: str | None = None,
    version: str | None = None,
) -> tuple[str, Attributes]:
    """Return the span of a task of any role, over all its attempts. Kind: client, or internal for `plan`.

    The operation is `plan` for the role `plan` and `invoke_agent` for all other roles. The conventions cover only the
    roles `plan` and `work`. For other roles, the span's name begins with the role. `model` is from the agent's card,
    such as `openai:gpt-5` or `offline`. For an agent without a model, `gen_ai.provider.name` is left out, although the
    conventions require it.

    Returns:
        The name and the attributes.
    """
    provider, _, named = (model or "").partition(":")
    operation = "plan" if role == "plan" else "invoke_agent"
    return f"{operation if role in ('work', 'plan') else role} {agent}", {
        OPERATION_NAME: operation,
        PROVIDER_NAME: provider or None,
        REQUEST_MODEL: named or provider or None,
        AGENT_NAME: agent,
        "gen_ai.agent.version": version,
        ROLE: role,
        WORKFLOW_ID: workflow_id,
        TASK_ID: task_id,
        "pointsman.attempts": attempts,
        CONVERSATION_ID: correlation_id,
        STATUS: status,
    }


def process_handoff(
    namespace: str,
    agent: str,
    *,
    subject: str,
    workflow_id: str,
    task_id: str,
    attempt: int,
    delivered: int = 1,
    message_id: str | None = None,
    source: str | None = None,
    correlation_id: str | None = None,
    consumer: str | None = None,
    role: str | None = None,
    server: Server | None = None,
) -> tuple[str, Attributes]:
    """Return the span of a worker that runs one attempt. Kind: consumer.

    `delivered` is the broker's count of deliveries, from 1. The task's span is the parent, not a link. The conventions
    allow this because handoffs are received one at a time.

    Returns:
        The name and the attributes.
    """
    return f"process {namespace}.handoff.{agent}", {
        **_cloudevent(message_id, source, "io.pointsman.handoff.v1"),
        **_messaging(
            "process",
            "process",
            subject,
            server,
            message_id=message_id,
            correlation_id=correlation_id,
            consumer=consumer,
        ),
        AGENT_NAME: agent,
        CONVERSATION_ID: correlation_id,
        ROLE: role,
        WORKFLOW_ID: workflow_id,
        TASK_ID: task_id,
        ATTEMPT: attempt,
        DELIVERED: delivered,
    }


def handoff_duration_attributes(namespace: str, agent: str, server: Server | None, error: str | None) -> Attributes:
    """Return the metric attributes of one attempt at a handoff."""
    return {
        **_server_attributes(server),
        "messaging.system": _NATS,
        "messaging.operation.name": "process",
        "messaging.destination.template": destination_template(f"{namespace}.handoff.{agent}"),
        AGENT_NAME: agent,
        ERROR_TYPE: error,
    }


def process_inputs(
    namespace: str,
    team: str,
    *,
    subject: str,
    workflow_id: str,
    count: int,
    delivered: int = 1,
    correlation_id: str | None = None,
    server: Server | None = None,
) -> tuple[str, Attributes]:
    """Return the span of a supervisor that processes `count` inputs of a workflow. Kind: consumer."""
    kind = subject.removeprefix(f"{namespace}.").partition(".")[0]
    return f"process {namespace}.{kind}.{team}", {
        **_messaging(
            "process", "process", subject, server, correlation_id=correlation_id, consumer=f"{_QUEUES[kind]}-{team}"
        ),
        "messaging.batch.message_count": count if count > 1 else None,
        TEAM: team,
        WORKFLOW_ID: workflow_id,
        CONVERSATION_ID: correlation_id,
        DELIVERED: delivered,
    }


def chat(
    provider: str,
    model: str,
    *,
    agent: str | None = None,
    correlation_id: str | None = None,
    max_tokens: int | None = None,
    temperature: float | None = None,
    structured: bool = False,
    attempt: int | None = None,
) -> tuple[str, Attributes]:
    """Return the span of a model call. Kind: client. `attempt` counts the tries of one call, from 1."""
    return f"chat {model}", {
        OPERATION_NAME: "chat",
        PROVIDER_NAME: provider,
        REQUEST_MODEL: model,
        AGENT_NAME: agent,
        CONVERSATION_ID: correlation_id,
        "gen_ai.request.max_tokens": max_tokens,
        "gen_ai.request.temperature": temperature,
        "gen_ai.output.type": "json" if structured else "text",
        ATTEMPT: attempt,
    }


def chat_reply(
    *,
    model: str | None = None,
    response_id: str | None = None,
    finish: str | None = None,
    input_tokens: int | None = None,
    output_tokens: int | None = None,
    cost: float | None = None,
) -> Attributes:
    """Return the attributes that the answer adds to the span of a model call."""
    return {
        "gen_ai.response.model": model or None,
        "gen_ai.response.id": response_id or None,
        "gen_ai.response.finish_reasons": (finish,) if finish else None,
        "gen_ai.usage.input_tokens": input_tokens,
        "gen_ai.usage.output_tokens": output_tokens,
        COST: cost or None,
    }


def execute_tool(
    tool: str, *, call_id: str, agent: str | None = None, description: str | None = None
) -> tuple[str, Attributes]:
    """Return the span of one run of a tool. Kind: internal."""
    return f"execute_tool {tool}", {
        OPERATION_NAME: "execute_tool",
        TOOL_NAME: tool,
        "gen_ai.tool.call.id": call_id or None,  # empty for a call by code: only models give ids to their calls
        "gen_ai.tool.type": "function",
        "gen_ai.tool.description": description or None,
        AGENT_NAME: agent,
    }


def deliver_webhook(
    event: str,
    *,
    host: str,
    port: int,
    webhook_id: str,
    endpoint: str,
    workflow_id: str | None,
    attempt: int,
    code: int | None,
    status: str,
) -> tuple[str, Attributes]:
    """Return the span of an attempt to deliver a webhook. Kind: client. The URL, which may be secret, is left out."""
    return f"deliver {event}", {
        "http.request.method": "POST",
        "http.response.status_code": code,
        SERVER_ADDRESS: host,
        SERVER_PORT: port,
        WEBHOOK_EVENT: event,
        "pointsman.webhook.id": webhook_id,
        WEBHOOK_ENDPOINT: endpoint,
        WORKFLOW_ID: workflow_id,
        ATTEMPT: attempt,
        STATUS: status,
    }


def broker_hop(subject: str, server: str, *, stored: bool) -> tuple[str, Attributes]:
    """Return the span of one server of the broker that stored a message or routed it to others. Kind: internal."""
    operation = "store" if stored else "route"
    return f"{operation} {destination_template(subject).partition('.{')[0]}", {
        "messaging.system": _NATS,
        "messaging.operation.name": operation,
        "messaging.destination.name": subject,
        "messaging.destination.template": destination_template(subject),
        "pointsman.broker.server": server,
    }


def destination_template(subject: str) -> str:
    """Return a subject with placeholders for its ids, so that a workflow does not create new time series."""
    match subject.split(".", 3):
        case "$O" | "$KV" as store, bucket, kind, _:
            return f"{store}.{bucket}.{kind}.{_KEYS[store]}"
        case namespace, kind, third, *_ if kind in _DESTINATIONS:
            of_third, rest = _DESTINATIONS[kind]
            return f"{namespace}.{kind}.{third}{rest}" if of_third else f"{namespace}.{kind}{rest}"
        case _:
            return subject


def published_message_attributes(subject: str, server: Server | None, error: str | None) -> Attributes:
    """Return the metric attributes of one sent message."""
    return {**_metric_attributes("publish", "send", subject, server), ERROR_TYPE: error}


def received_messages_attributes(subject: str, server: Server | None, consumer: str) -> Attributes:
    """Return the metric attributes of messages that a durable consumer delivered."""
    return {**_metric_attributes("receive", "receive", subject, server), "messaging.consumer.group.name": consumer}


def _metric_attributes(operation: str, kind: str, subject: str, server: Server | None) -> dict[str, Value | None]:
    """Return common attributes, without subject and message id, which would create a time series for each message."""
    return {
        **_server_attributes(server),
        "messaging.system": _NATS,
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
        "messaging.destination.template": destination_template(subject),
    }


def _server_attributes(server: Server | None) -> dict[str, Value | None]:
    return {SERVER_ADDRESS: server.address, SERVER_PORT: server.port} if server is not None else {}


def _cloudevent(event_id: str | None, source: str | None, event_type: str) -> dict[str, Value | None]:
    if not event_id or not source:
        return {}
    return {
        "cloudevents.event_id": event_id,
        "cloudevents.event_source": source,
        "cloudevents.event_spec_version": "1.0",
        "cloudevents.event_type": event_type,
    }


def _messaging(
    operation: str,
    kind: str,
    subject: str,
    server: Server | None,
    *,
    message_id: str | None = None,
    correlation_id: str | None = None,
    consumer: str | None = None,
) -> dict[str, Value | None]:
    return {
        **_server_attributes(server),
        "messaging.system": _NATS,
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
        "messaging.destination.name": subject,
        "messaging.destination.template": destination_template(subject),
        "messaging.message.id": message_id,
        "messaging.message.conversation_id": correlation_id,
        "messaging.consumer.group.name": consumer,
    }
