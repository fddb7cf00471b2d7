"""Record messages to a running workflow. A message that no task has read at the end becomes the thread's next turn.

A message is recorded once, even if it is delivered several times. Later attempts receive the message in their handoffs.
The agents of running attempts receive the message on their own subject, and read it between two steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pointsman.core.decision import Decision
from pointsman.core.model.inputs import ControlReceived
from pointsman.core.model.lifecycle import Phase
from pointsman.core.model.messages import Message
from pointsman.core.model.state import State, Task
from pointsman_schemas.card import Role
from pointsman_schemas.events import Control, Request, UserMessage, UserMessages
from pointsman_schemas.ids import child_id_for, derive_id, workflow_id_for
from pointsman_schemas.log import ControlIgnored, MessageReceived, ThreadTurn
from pointsman_schemas.subjects import Subjects

__all__ = [
    "INFORMED_ROLES",
    "NextTurn",
    "late_message",
    "late_turn",
    "message_refusal",
    "next_turn_request_id",
    "next_turn_workflow",
    "outbox_messages",
    "record_message",
    "unread_messages",
    "unread_turn",
]

INFORMED_ROLES = (Role.WORK, Role.PLAN, Role.CLASSIFY, Role.SYNTHESIZE)
"""The roles whose agents receive the earlier turns of a thread and the messages to the workflow."""


@dataclass(frozen=True, slots=True)
class NextTurn:
    """A request that continues a thread.

    Attributes:
        place: The thread, and the turn that has ended.
        request_id: The id of the request. The id is the same each time that the request is published.
        request: The request.
    """

    place: ThreadTurn
    request_id: str
    request: Request


def record_message(decision: Decision, received: ControlReceived) -> None:
    """Record a message to a running workflow. If the message is refused, record the reason instead."""
    state = decision.state
    if received.event_id in state.ignored_events:
        return  # a redelivery
    if reason := message_refusal(state, received.control.text):
        decision.add(
            ControlIgnored(at=decision.now, event_id=received.event_id, action=received.control.action, reason=reason)
        )
        return
    decision.add(
        MessageReceived(
            at=decision.now,
            event_id=received.event_id,
            number=len(state.messages) + 1,
            text=received.control.text,
            by=received.actor,
        )
    )


def message_refusal(state: State, text: str) -> str:
    """Return the reason for which a running workflow refuses a message; an empty text if the message is recorded."""
    if len(state.messages) >= state.limits.messages:
        return f"the workflow has {len(state.messages)} messages; at most {state.limits.messages} are allowed"
    return "" if text.strip() else "the message is empty"


def late_message(state: State, received: ControlReceived) -> str:
    """Return the reason for which a message to an ended workflow is refused; an empty text for any other message.

    Three kinds of messages are not refused: a message from the caller of the thread, which becomes the next turn; a
    redelivery of a message that was recorded before; and a message from a parent, whose task already has its result.
    """
    if received.event_id in state.ignored_events or state.parent is not None or late_turn(state, received) is not None:
        return ""
    ended = f"the workflow has ended as {state.phase}, so no step is left that could read the message"
    if state.thread is None:
        return f"{ended}; send a new request"
    return f"{ended}; only {state.thread.caller} can continue its thread"


def late_turn(state: State, received: ControlReceived) -> NextTurn | None:
    """Return the next turn of the thread for a message after the end; None if the message starts no turn."""
    text, place = received.control.text, state.thread
    if not state.ended or received.event_id in state.ignored_events or not text.strip():
        return None
    if place is None or place.caller != received.actor:
        return None
    name = next_turn_request_id(state.workflow_id, received.event_id)
    return NextTurn(place, name, Request(input=text, thread=place.thread))


def next_turn_request_id(workflow: str, name: str) -> str:
    """Return the id of the request that continues the thread of an ended workflow."""
    return derive_id("turn", workflow, name)


def next_turn_workflow(subjects: Subjects, team: str, caller: str, request_id: str) -> str:
    """Return the workflow that a request of `NextTurn` starts."""
    return workflow_id_for(subjects.request(team, caller), request_id, subjects.source("team", team))


def unread_messages(state: State) -> tuple[UserMessage, ...]:
    """Return the messages of the present round that no task with a result has read."""
    return tuple(each for each in state.messages[state.messages_read :] if each.at >= state.round_began_at)


def unread_turn(state: State) -> NextTurn | None:
    """Return the next turn of the thread, with the unread messages of its caller; None if no next turn follows.

    After a cancellation no turn follows, because a person ended the workflow deliberately.
    """
    place = state.thread
    if place is None or not state.ended or state.phase is Phase.CANCELLED:
        return None
    texts = [each.text for each in unread_messages(state) if each.by == place.caller]
    if not texts:
        return None
    name = next_turn_request_id(state.workflow_id, f"round-{state.round}")
    return NextTurn(place, name, Request(input="\n\n".join(texts), thread=place.thread))


def outbox_messages(state: State, subjects: Subjects) -> Iterator[Message]:
    """List the outbox messages that bring user messages to running attempts.

    Only attempts whose handoff lacks the newest user message need an outbox message. An agent with such attempts
    receives one outbox message, with all user messages. A team with such an attempt receives each user message that its
    handoff lacks, as a control of its child workflow.

    Args:
        state: The state.
        subjects: The subjects of the namespace.

    Yields:
        The messages of the outbox.
    """
    if not state.messages or state.ended:
        return
    newest = state.messages[-1]
    behind = [
        task
        for task in state.tasks.values()
        if task.active and task.role in INFORMED_ROLES and task.messages < newest.number
    ]
    for agent in dict.fromkeys(task.agent for task in behind if not task.team):
        yield Message(
            subject=subjects.message(agent, state.team, state.workflow_id, newest.number),
            event=UserMessages(workflow_id=state.workflow_id, messages=state.messages),
            id=f"{state.workflow_id}-message-{newest.number}-{agent}",
            at=newest.at,
            commit=state.commits,
            span_id=state.trace.span_id,
        )
    for task in behind:
        if task.team:
            yield from _child_messages(state, task, subjects)


def _child_messages(state: State, task: Task, subjects: Subjects) -> Iterator[Message]:
    child = child_id_for(task.agent, state.workflow_id, task.id, task.attempt)
    for each in state.messages[task.messages :]:
        yield Message(
            subject=subjects.control(task.agent, child, "tell", state.team, f"message-{each.number}"),
            event=Control(action="tell", text=each.text),
            id=f"{child}-message-{each.number}",
            at=each.at,
            commit=state.commits,
            span_id=task.span_id,
        )
