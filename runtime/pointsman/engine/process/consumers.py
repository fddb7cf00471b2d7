"""The durable consumers of a team and of an agent: their names, streams and filters."""

from __future__ import annotations

from typing import NamedTuple

from pointsman.ports.bus import StreamKind
from pointsman_schemas.ids import token
from pointsman_schemas.subjects import Subjects

__all__ = [
    "MAX_WAITING_DELIVERIES",
    "DurableConsumer",
    "agent_consumer",
    "consumer_name",
    "input_consumers",
    "request_consumer",
    "webhook_consumers",
]

MAX_WAITING_DELIVERIES = 100_000
"""Largest number of deliveries to webhooks that are in flight or wait for another attempt. Further deliveries wait in
the stream. The number is limited, because the broker keeps some hundred bytes for each of these deliveries."""


class DurableConsumer(NamedTuple):
    """A durable consumer with one filter.

    Attributes:
        name: The name.
        stream: The stream.
        subject: The filter.
    """

    name: str
    stream: StreamKind
    subject: str


def consumer_name(agent: str) -> str:
    """Return the name of the consumer that all workers of an agent share. Autoscalers read its depth by this name."""
    return f"agent-{token(agent, 'agent')}"


def agent_consumer(subjects: Subjects, agent: str) -> DurableConsumer:
    """Return the consumer of the handoffs to an agent, or to a team."""
    return DurableConsumer(consumer_name(agent), "handoffs", subjects.agent_handoffs(agent))


def request_consumer(subjects: Subjects, team: str) -> DurableConsumer:
    """Return the consumer of the requests to a team."""
    return DurableConsumer(f"request-{token(team, 'team')}", "requests", subjects.team_requests(team))


def input_consumers(subjects: Subjects, team: str) -> tuple[DurableConsumer, DurableConsumer, DurableConsumer]:
    """Return the consumers of the inputs of a team's running workflows: controls, results and timers."""
    return (
        DurableConsumer(f"control-{token(team, 'team')}", "controls", subjects.team_controls(team)),
        DurableConsumer(f"result-{team}", "results", subjects.team_results(team)),
        DurableConsumer(f"timer-{team}", "work", subjects.team_timers(team)),
    )


def webhook_consumers(
    subjects: Subjects,
) -> tuple[DurableConsumer, DurableConsumer, DurableConsumer, DurableConsumer]:
    """Return the consumers of the webhook services: outcomes, questions, dead letters and deliveries."""
    return (
        DurableConsumer("webhook-outcomes", "log", subjects.team_outcomes()),
        DurableConsumer("webhook-questions", "log", subjects.workflow_questions()),
        DurableConsumer("webhook-dead-letters", "dead", subjects.dead_letters_for()),
        DurableConsumer("webhook-deliveries", "deliveries", subjects.deliveries),
    )
