"""Build and parse the subjects of the bus, and validate every token. No other package builds or parses subjects.

The publisher of a message is named in its subject, such as the caller of a request or the agent of a result. So the
broker's permissions can restrict a user to the subjects with its own name.

| Subject | Carries | Writer |
|---|---|---|
| `{ns}.request.{team}.{caller}` | requests | callers |
| `{ns}.control.{team}.{workflow}.{action}.{actor}.{id}` | commands, such as `cancel`, `answer` and `tell` | operators |
| `{ns}.audit.{action}.{actor}.{id}` | records of operations | operators |
| `{ns}.result.{team}.{agent}.{workflow}.{task}.{attempt}.{token}` | results | agents |
| `{ns}.step.{agent}.{team}.{workflow}.{task}.{attempt}.{name}` | steps of a running attempt | agents |
| `{ns}.event.{team}.{workflow}.{agent}.{name}` | progress and domain events | agents |
| `{ns}.handoff.{agent}.{team}.{workflow}.{task}.{attempt}` | handoffs | supervisors |
| `{ns}.timer.{team}.{workflow}.{name}` | timers that fired | supervisors |
| `{ns}.schedule.{team}.{workflow}.timer.{name}` | timers for later | supervisors |
| `{ns}.schedule.{team}.{workflow}.handoff.{name}` | handoffs for later | supervisors |
| `{ns}.log.{team}.{workflow}` | commits | supervisors |
| `{ns}.outcome.{team}.{workflow}` | the outcome | supervisors |
| `{ns}.question.{team}.{workflow}.{id}` | questions to a person | supervisors |
| `{ns}.message.{agent}.{team}.{workflow}.{number}` | messages to a running workflow, for an agent | supervisors |
| `{ns}.thread.{team}.{caller}.{thread}` | the record of a thread: the order of its turns | supervisors |
| `{ns}.cron.{team}.{caller}.{schedule}` | the record of a schedule: its times and its runs | supervisors |
| `{ns}.dead.{origin}.{workflow or "none"}.{id}` | dead letters | agents, supervisors |
| `{ns}.delivery.{endpoint}.{workflow or "none"}.{event}.message` | an event for a webhook | webhook services |
| `{ns}.delivery.{endpoint}.{workflow or "none"}.{event}.resend` | an order to send the event again | operators |
| `{ns}.receipt.{endpoint}.{workflow or "none"}.{event}` | the state of a delivery | webhook services |
| `{ns}.limit.{id}` | the unused part of a model provider's limits | agents |
| `{ns}.circuits` | the open circuits | supervisors |
| `{ns}.cancelled.{team}.{workflow}` | cancellations, not stored | supervisors |
| `{ns}.delta.{team}.{workflow}.{agent}` | text that models are writing, not stored | agents |
| `{ns}.handed.{supervisor}.>` | messages forwarded to a supervisor, not stored | supervisors |
"""

from __future__ import annotations

from dataclasses import dataclass

from pointsman_schemas.subjects.addresses import (
    AddressParser,
    ControlAddress,
    DeliveryAddress,
    HandoffAddress,
    ResultAddress,
    TimerAddress,
)
from pointsman_schemas.subjects.filters import SubjectFilters
from pointsman_schemas.subjects.messages import MessageSubjects

__all__ = ["ControlAddress", "DeliveryAddress", "HandoffAddress", "ResultAddress", "Subjects", "TimerAddress"]


@dataclass(frozen=True, slots=True)
class Subjects(MessageSubjects, SubjectFilters, AddressParser):
    """The subjects, streams and buckets of one namespace.

    Every method raises `InvalidTokenError` for an argument that is not a token of a subject.

    Args:
        namespace: The tenant; default: `pointsman`.
    """
