"""List the messages that must exist on the bus in a given state.

Each message has its own subject, and the broker refuses a second message on that subject. So publishing the whole
outbox again is harmless. Recovery means to load the state and to publish its outbox.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Set

from pointsman.core.model.lifecycle import TaskStatus
from pointsman.core.model.messages import Message
from pointsman.core.model.state import OpenQuestion, State, Task, reviewed_stage
from pointsman.core.planning.summary import conversation
from pointsman.core.tasks.child_workflow import child_cancellation, child_result
from pointsman.core.tasks.handoff_input import (
    handoff_input,
    known_results,
    question_request,
    question_subject,
    task_report,
)
from pointsman.core.user_messages import INFORMED_ROLES, outbox_messages
from pointsman_schemas.card import Role
from pointsman_schemas.events import AttemptError, DeadLetter, ErrorKind, Handoff, Question, Timer
from pointsman_schemas.ids import attempt_token, dead_letter_id, delayed_handoff_id, outcome_id, task_key
from pointsman_schemas.strict_json import dump
from pointsman_schemas.subjects import Subjects

__all__ = ["USER_MESSAGES", "Message", "build_handoff", "outbox", "retry_schedule"]

USER_MESSAGES = "> user messages"
"""The name of the user messages in the argument `only` of `outbox`. The name is not a valid token, so no task has this
name."""


def outbox(state: State, subjects: Subjects, only: Set[str] | None = None) -> Iterator[Message]:
    """List the messages that must exist on the bus in `state`.

    The outcome is the last message of the list, and is published last. So if the outcome is on the bus, all other
    messages of the list are on the bus, too.

    Args:
        state: The state.
        subjects: The subjects of the namespace.
        only: Ids of tasks and questions, the name of the timer, and `USER_MESSAGES`. Only the messages for these are
            listed, and the outcome. Default: list all messages.

    Yields:
        The messages.
    """
    tasks = state.tasks.values() if only is None else (state.tasks[name] for name in only if name in state.tasks)
    for task in tasks:
        if task.active:
            if not state.ended:
                yield _handoff_message(state, task, subjects)
        elif task.status is TaskStatus.FAILED and not task.has_items:  # only the tasks of its items have dead letters
            yield _dead_letter_message(state, task, subjects)
        elif task.status is TaskStatus.ABANDONED:
            if task.team:
                yield child_cancellation(state, task, subjects)
            if task.attempt > 0 and task.abandon_cause == "limit":  # a limit ended the task after the dispatch
                yield _dead_letter_message(state, task, subjects)
    if state.messages and (only is None or USER_MESSAGES in only):
        yield from outbox_messages(state, subjects)
    for pending in state.questions.values():
        if only is None or pending.id in only:
            yield _question_message(state, pending, subjects)
    if state.outcome is not None:
        if state.parent is not None:
            yield child_result(state, state.parent, state.outcome)
        yield Message(
            subject=subjects.outcome(state.team, state.workflow_id),
            event=state.outcome,
            id=outcome_id(state.workflow_id, state.round),
            at=state.outcome.ended_at,
            commit=state.commits,
            span_id=state.trace.span_id,
        )
    elif state.timer_due is not None and (only is None or state.timer in only):
        yield Message(
            subject=subjects.timer(state.team, state.workflow_id, state.timer),
            event=Timer(name=state.timer, due=state.timer_due),
            id=f"{state.workflow_id}-{state.timer}",
            at=state.timer_due,
            commit=state.commits,
            span_id=state.trace.span_id,
            schedule=subjects.schedule(state.team, state.workflow_id, state.timer),
            due=state.timer_due,
        )


def _handoff_message(state: State, task: Task, subjects: Subjects) -> Message:
    waits = task.status is TaskStatus.BACKING_OFF and task.not_before is not None
    return Message(
        subject=subjects.handoff(task.agent, state.team, state.workflow_id, task.id, task.attempt),
        event=build_handoff(state, task, subjects),
        id=_handoff_id(state, task),
        at=task.since or state.started_at,
        commit=task.commit,
        span_id=task.span_id,
        schedule=retry_schedule(state, task, subjects) if waits else None,
        due=task.not_before if waits else None,
    )


def retry_schedule(state: State, task: Task, subjects: Subjects) -> str:
    """Return the subject on which the broker stores the handoff of a delayed attempt."""
    return subjects.retry(state.team, state.workflow_id, delayed_handoff_id(task.id, task.attempt))


def build_handoff(state: State, task: Task, subjects: Subjects) -> Handoff:
    """Return the handoff of the current attempt at `task`, with the results of the tasks that it depends on."""
    if (stage := reviewed_stage(state, task)) is not None:
        context = tuple(task_report(state.tasks[name]) for name in (*stage.depends_on, stage.id))
    elif task.role in (Role.SYNTHESIZE, Role.JUDGE):
        context = tuple(task_report(done) for done in state.answering_tasks())
    else:
        context = tuple(task_report(state.tasks[name]) for name in task.depends_on if name in state.tasks)
    attempt = max(task.attempt, 1)  # a task that a person rejected had no attempt, but its dead letter has a handoff
    return Handoff(
        workflow_id=state.workflow_id,
        task_id=task.id,
        attempt=attempt,
        from_agent=state.team,
        to_agent=task.agent,
        role=task.role,
        intent=task.intent,
        input=handoff_input(state, task),
        context=context,
        files=state.files,
        return_to=subjects.result(
            state.team,
            task.agent,
            state.workflow_id,
            task.id,
            attempt,
            attempt_token(state.secret, task.id, attempt),
        ),
        deadline=task.deadline or state.deadline,
        idempotency_key=task_key(state.secret, state.workflow_id, task.id),
        budget=task.budget,
        depth=state.depth,
        event=task.event,
        history=conversation(state) if state.history is not None and task.role in INFORMED_ROLES else None,
        messages=state.messages[: task.messages] if task.role in INFORMED_ROLES else (),
        answers=task.answers,
        continued_attempts=task.asking_attempts,
        feedback=task.error.message if task.error and task.error.kind == ErrorKind.INSUFFICIENT else "",
    )


def _question_message(state: State, pending: OpenQuestion, subjects: Subjects) -> Message:
    """Return the event for a question, which a program can show to a person."""
    task = state.tasks[pending.task_id] if pending.task_id is not None else None
    return Message(
        subject=subjects.question(state.team, state.workflow_id, pending.id),
        event=Question(
            id=pending.id,
            workflow_id=state.workflow_id,
            team=state.team,
            caller=state.caller,
            parent=state.parent.workflow_id if state.parent else None,
            about=pending.about,
            task_id=pending.task_id,
            agent=task.agent if task else None,
            intent=task.intent if task else (pending.plan.goal if pending.plan else ""),
            tool=pending.tool,
            text=pending.text,
            input=question_subject(state, pending),
            input_schema=pending.input_schema,
            has_default=pending.has_default,
            default=pending.default,
            request=question_request(state),
            known=known_results(state),
            asked_at=pending.asked_at,
            expires_at=pending.expires_at,
            reply_to=subjects.controls_of(state.team, state.workflow_id),
        ),
        id=pending.id,
        at=pending.asked_at,
        commit=state.commits,
        span_id=(task.span_id if task else "") or state.trace.span_id,
    )


def _dead_letter_message(state: State, task: Task, subjects: Subjects) -> Message:
    name = dead_letter_id(state.workflow_id, task.id, task.attempt)
    handoff = build_handoff(state, task, subjects)
    at = task.ended_at or state.started_at
    cause = task.error or AttemptError(kind=ErrorKind.HANDLER, message="no cause is known")
    if task.status is TaskStatus.ABANDONED:  # do not use `task.error`, which might be from an earlier attempt
        cause = AttemptError(kind=ErrorKind.LIMIT, message=task.reason or state.reached_limit)
    letter = DeadLetter(
        id=name,
        origin=task.agent,
        workflow_id=state.workflow_id,
        team=state.team,
        task_id=task.id,
        cause=cause,
        attempts=task.attempt,
        subject=subjects.handoff(task.agent, state.team, state.workflow_id, task.id, task.attempt),
        headers={"ce-id": _handoff_id(state, task), "ce-type": Handoff.event_type, "ce-subject": state.workflow_id},
        body=base64.b64encode(dump(handoff)).decode("ascii"),
        at=at,
    )
    return Message(
        subject=subjects.dead_letter(task.agent, state.workflow_id, name),
        event=letter,
        id=name,
        at=at,
        commit=state.commits,
        span_id=task.span_id,
    )


def _handoff_id(state: State, task: Task) -> str:
    return f"{state.workflow_id}-{task.id}-{task.attempt}"
