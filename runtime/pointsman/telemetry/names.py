"""Names of spans, attributes and metrics: the OpenTelemetry strings Pointsman uses, spelled in this one place.

The messaging (core 1.44) and GenAI (1.42) conventions are in development and their names still move, so they are copied
here, not imported. What no convention covers has the prefix `pointsman.`.

The functions give the name and the attributes of each span of a workflow. Span names stay few: a workflow id appears in
attributes only, never in a name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

__all__ = [
    "AGENT_NAME",
    "ATTEMPT",
    "COMMIT_CONFLICTS",
    "CONVERSATION_ID",
    "COST",
    "DEAD_LETTERS",
    "ERROR_TYPE",
    "MODEL_DURATION",
    "OPERATION_NAME",
    "ORIGIN",
    "PROCESS_DURATION",
    "PROVIDER_NAME",
    "REQUEST_MODEL",
    "RETRIES",
    "ROLE",
    "STATUS",
    "TASK_DURATION",
    "TASK_ID",
    "TEAM",
    "TOKEN_TYPE",
    "TOKEN_USAGE",
    "WORKFLOW_DURATION",
    "WORKFLOW_ID",
    "WORKFLOW_NAME",
    "Attributes",
    "Value",
    "chat",
    "chat_answer",
    "execute_tool",
    "invoke_workflow",
    "process_handoff",
    "publish_request",
    "task",
]

Value: TypeAlias = str | bool | int | float | Sequence[str]
Attributes: TypeAlias = Mapping[str, Value | None]
"""What may stand on a span. None means there is nothing to say, and the attribute is left out."""

# Common to all
ERROR_TYPE: Final = "error.type"
CONVERSATION_ID: Final = "gen_ai.conversation.id"

# GenAI
OPERATION_NAME: Final = "gen_ai.operation.name"
PROVIDER_NAME: Final = "gen_ai.provider.name"
AGENT_NAME: Final = "gen_ai.agent.name"
WORKFLOW_NAME: Final = "gen_ai.workflow.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
TOKEN_TYPE: Final = "gen_ai.token.type"

# Ours
WORKFLOW_ID: Final = "pointsman.workflow.id"
TEAM: Final = "pointsman.team"
TASK_ID: Final = "pointsman.task.id"
ATTEMPT: Final = "pointsman.attempt"
ROLE: Final = "pointsman.role"
STATUS: Final = "pointsman.status"
ORIGIN: Final = "pointsman.origin"
COST: Final = "pointsman.usage.cost"
"""US dollars. The conventions have no attribute for money."""

# Metrics
PROCESS_DURATION: Final = "messaging.process.duration"
MODEL_DURATION: Final = "gen_ai.client.operation.duration"
TOKEN_USAGE: Final = "gen_ai.client.token.usage"
WORKFLOW_DURATION: Final = "pointsman.workflow.duration"
TASK_DURATION: Final = "pointsman.task.duration"
RETRIES: Final = "pointsman.retries"
DEAD_LETTERS: Final = "pointsman.dead_letters"
COMMIT_CONFLICTS: Final = "pointsman.commit.conflicts"

_NATS: Final = "nats"  # not among the conventions' systems yet; a value of one's own is allowed


def publish_request(
    namespace: str, team: str, *, message_id: str | None = None, correlation_id: str | None = None
) -> tuple[str, Attributes]:
    """A caller publishes a request. Kind: producer."""
    subject = f"{namespace}.request.{team}"
    return f"publish {subject}", {
        **_messaging(
            "publish", "send", template=subject, subject=subject, message_id=message_id, correlation_id=correlation_id
        ),
        TEAM: team,
    }


def invoke_workflow(
    team: str, *, workflow_id: str, correlation_id: str | None = None, status: str | None = None
) -> tuple[str, Attributes]:
    """A workflow, from its request to its outcome. Kind: internal."""
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
) -> tuple[str, Attributes]:
    """A task of any role, over all its attempts, from dispatch to result. Kind: client.

    `work` is an `invoke_agent`, `plan` is a `plan`; the roles no convention knows are named by themselves, and are an
    `invoke_agent` for whoever reads operation names. The conventions ask for the model's provider here too: a
    supervisor does not know it, only the agent does, and it is on the spans of its model calls.
    """
    operation = "plan" if role == "plan" else "invoke_agent"
    return f"{operation if role in ('work', 'plan') else role} {agent}", {
        OPERATION_NAME: operation,
        AGENT_NAME: agent,
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
    correlation_id: str | None = None,
    consumer: str | None = None,
    role: str | None = None,
) -> tuple[str, Attributes]:
    """A worker runs one attempt. Kind: consumer. `delivered` is the broker's count of deliveries, from 1.

    Its parent is the task's span: a handoff is taken one at a time, which is when the conventions allow the message's
    context to be the parent rather than a link.
    """
    template = f"{namespace}.handoff.{agent}"
    return f"process {template}", {
        **_messaging(
            "process",
            "process",
            template=template,
            subject=subject,
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
        "pointsman.delivered": delivered,
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
    """One model call. Kind: client. `attempt` counts the tries of the same call, from 1."""
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


def chat_answer(
    *,
    model: str | None = None,
    response_id: str | None = None,
    finish: str | None = None,
    input_tokens: int | None = None,
    output_tokens: int | None = None,
    cost: float | None = None,
) -> Attributes:
    """What the span of a model call learns from the answer."""
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
    """One run of a tool. Kind: internal."""
    return f"execute_tool {tool}", {
        OPERATION_NAME: "execute_tool",
        "gen_ai.tool.name": tool,
        "gen_ai.tool.call.id": call_id or None,  # code that calls a tool by itself has none
        "gen_ai.tool.type": "function",
        "gen_ai.tool.description": description or None,
        AGENT_NAME: agent,
    }


def _messaging(
    operation: str,
    kind: str,
    *,
    template: str,
    subject: str,
    message_id: str | None,
    correlation_id: str | None,
    consumer: str | None = None,
) -> dict[str, Value | None]:
    return {
        "messaging.system": _NATS,
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
        "messaging.destination.name": subject,
        "messaging.destination.template": template,
        "messaging.message.id": message_id,
        "messaging.message.conversation_id": correlation_id,
        "messaging.consumer.group.name": consumer,
    }
