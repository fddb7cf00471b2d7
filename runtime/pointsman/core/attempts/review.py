"""What a stage made is shown to a judge before it counts, where the stage's check names one: it passes, is done again
once, or ends the pipeline. A judge that cannot be heard has let nothing pass."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pydantic import JsonValue, ValidationError

from pointsman.core.decision import Draft
from pointsman.core.model.inputs import ResultReceived
from pointsman.core.model.state import State, Task
from pointsman.core.tasks.dispatch import add_role_task, free_id
from pointsman_schemas.card import Role
from pointsman_schemas.events import AttemptError, ErrorKind
from pointsman_schemas.log import ReviewAsked
from pointsman_schemas.role_io import Review, ReviewInput
from pointsman_schemas.strategies import Check, FanOut, Pipeline
from pointsman_schemas.strict_json import describe

__all__ = ["ask_for_review", "check_of", "insufficient", "judge_of", "objection", "read_review"]


def judge_of(state: State, task: Task) -> str | None:
    """The agent that must let pass what `task` makes, if there is one."""
    return check_of(state, task).judge


def ask_for_review(draft: Draft, task: Task, judge: str, received: ResultReceived) -> None:
    """Have `judge` look at what the stage made; it waits meanwhile."""
    state = draft.open()
    asked = ReviewInput(
        request=state.input,
        task_id=task.id,
        agent=task.agent,
        intent=task.intent,
        criteria=check_of(state, task).criteria,
        last=_last(task),
    )
    draft.add(
        ReviewAsked(
            at=draft.now,
            task_id=task.id,
            attempt=task.attempt,
            event_id=received.event_id,
            judge=judge,
            result=received.result,
        )
    )
    add_role_task(draft, free_id(state, f"judge-{task.id}"), Role.JUDGE, judge, f"Judge what {task.id} has made", asked)


def read_review(output: JsonValue) -> Review | str:
    """What a judge said, or why that is no review."""
    try:
        return Review.model_validate(output)
    except ValidationError as error:
        return f"the review does not fit: {describe(error)}; expected a verdict of pass, again or stop, and a reason"


def objection(stage: Task, judge: Task, review: Review) -> AttemptError | None:
    """Why what the stage made does not count; None when it passes. Only what may be done again is worth another try."""
    if review.verdict == "pass":
        return None
    if review.verdict == "again" and not _last(stage):
        return AttemptError(
            kind=ErrorKind.INSUFFICIENT, message=f"{judge.agent} sent it back: {review.reason}", retryable=True
        )
    again = " again, for the last time it could" if review.verdict == "again" else ""
    return AttemptError(kind=ErrorKind.REJECTED, message=f"{judge.agent} did not let it pass{again}: {review.reason}")


def _last(stage: Task) -> bool:
    """Whether it cannot be sent back: that is done once, and costs one of its attempts."""
    return stage.sent_back or stage.attempt >= stage.cap


_ANYTHING = Check()


def check_of(state: State, task: Task) -> Check:
    """What the output of `task` must be like; anything will do where it is no stage and no member of a fan-out."""
    if isinstance(state.strategy, FanOut):
        return state.strategy.check if task.role is Role.WORK else _ANYTHING
    stages = state.strategy.stages if isinstance(state.strategy, Pipeline) else ()
    return next((stage.check for stage in stages if stage.name == task.id), _ANYTHING)


def insufficient(state: State, task: Task, output: JsonValue) -> str:
    """Why `output` does not pass the check of its stage; nothing when it does, or when `task` is no stage."""
    return "; ".join(_problems(check_of(state, task), output))


def _problems(check: Check, output: JsonValue) -> Iterator[str]:
    if check.fields:
        if not isinstance(output, dict):
            yield f"the output is not a JSON object; expected one with {', '.join(check.fields)}"
        elif missing := [name for name in check.fields if output.get(name) in (None, "", [], {})]:
            yield f"the output lacks {', '.join(missing)}, or has nothing there"
    if not (check.states or check.min_length):
        return
    text = " ".join(_texts(output))
    if check.states and not any(_states(text, word) for word in check.states):
        yield f"the output must state one of: {', '.join(check.states)}"
    if len(text) < check.min_length:
        yield f"the output has {len(text)} characters; at least {check.min_length} are expected"


def _states(text: str, word: str) -> bool:
    return re.search(rf"\b{re.escape(word)}\b", text, re.IGNORECASE) is not None


def _texts(value: JsonValue) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for part in value.values():
                yield from _texts(part)
        case list():
            for part in value:
                yield from _texts(part)
