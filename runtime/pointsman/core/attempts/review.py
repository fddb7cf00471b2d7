"""Check the output of a stage. If the check names a judge, the output counts only after a review by the judge.

In this module, a stage is any task for which the strategy has a check, and not only the stage of a pipeline. A review
accepts the output, returns the stage for one more attempt, or fails the stage. A stage is returned only once. If the
judge fails, the stage fails.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pydantic import JsonValue, ValidationError

from pointsman.core.decision import Decision
from pointsman.core.model.inputs import ResultReceived
from pointsman.core.model.state import State, Task, unused_id
from pointsman.core.tasks.dispatch import add_role_task
from pointsman_schemas.card import Role
from pointsman_schemas.events import AttemptError, ErrorKind
from pointsman_schemas.log import ReviewRequested
from pointsman_schemas.role_io import Review, ReviewInput
from pointsman_schemas.strategies import Check
from pointsman_schemas.strict_json import describe

__all__ = ["check_failure", "output_check", "parse_review", "request_review", "review_error"]


def request_review(decision: Decision, task: Task, judge: str, received: ResultReceived) -> None:
    """Request a review of the output of a stage. The stage waits for the judge."""
    state = decision.state
    asked = ReviewInput(
        request=state.input,
        task_id=task.id,
        agent=task.agent,
        intent=task.intent,
        criteria=output_check(state, task).criteria,
        is_last_attempt=_is_last_attempt(task),
    )
    decision.add(
        ReviewRequested(
            at=decision.now,
            task_id=task.id,
            attempt=task.attempt,
            event_id=received.event_id,
            judge=judge,
            result=received.result,
        )
    )
    add_role_task(
        decision, unused_id(state, f"judge-{task.id}"), Role.JUDGE, judge, f"Judge what {task.id} has made", asked
    )


def parse_review(output: JsonValue) -> Review | str:
    """Return the review in the output of a judge. If the output is not a review, return a sentence about the fault."""
    try:
        return Review.model_validate(output)
    except ValidationError as error:
        return f"the review does not fit: {describe(error)}; expected a verdict of pass, again or stop, and a reason"


def review_error(stage: Task, judge: Task, review: Review) -> AttemptError | None:
    """Return the error of a stage that the judge did not accept; None for an accepted stage."""
    if review.verdict == "pass":
        return None
    if review.verdict == "again" and not _is_last_attempt(stage):
        return AttemptError(
            kind=ErrorKind.INSUFFICIENT, message=f"{judge.agent} returned the output: {review.reason}", retryable=True
        )
    again = ", and no attempt is left" if review.verdict == "again" else ""
    return AttemptError(kind=ErrorKind.REJECTED, message=f"{judge.agent} rejected the output{again}: {review.reason}")


def _is_last_attempt(stage: Task) -> bool:
    """Return True if the judge cannot return the stage: the stage was returned before, or no attempt is left."""
    return stage.returned_by_review or stage.attempt >= stage.max_attempts


_NO_CHECK = Check()


def output_check(state: State, task: Task) -> Check:
    """Return the check of the output of `task`; an empty check if the strategy has no check for the task."""
    match (strategy := state.strategy).kind:
        case "fan_out":
            return strategy.check if task.role is Role.WORK else _NO_CHECK
        case "fixed":
            return strategy.checks.get(task.item_of or task.id, _NO_CHECK)
        case "pipeline":
            return next((stage.check for stage in strategy.stages if stage.name == task.id), _NO_CHECK)
        case _:
            return _NO_CHECK


def check_failure(check: Check, output: JsonValue) -> str:
    """Return the reason why `output` fails the check of its task; an empty text for an output that passes."""
    return "; ".join(_check_problems(check, output))


def _check_problems(check: Check, output: JsonValue) -> Iterator[str]:
    if check.fields:
        if not isinstance(output, dict):
            yield f"the output is not a JSON object; expected one with {', '.join(check.fields)}"
        elif missing := [name for name in check.fields if output.get(name) in (None, "", [], {})]:
            yield f"the output lacks {', '.join(missing)}, or has an empty value there"
    if not (check.mentions or check.min_length):
        return
    text = " ".join(_texts(output))
    if check.mentions and not any(_mentions(text, word) for word in check.mentions):
        yield f"the output must state one of: {', '.join(check.mentions)}"
    if len(text) < check.min_length:
        yield f"the output has {len(text)} characters; at least {check.min_length} are expected"


def _mentions(text: str, word: str) -> bool:
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
