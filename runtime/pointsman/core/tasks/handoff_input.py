"""Build the input of a task's handoff from the state."""

from __future__ import annotations

from pydantic import JsonValue

from pointsman.core.budget.team_quota import remaining_replans
from pointsman.core.model.lifecycle import TaskStatus
from pointsman.core.model.state import OpenQuestion, State, Task, usage_bounds
from pointsman.core.tasks.expressions import expression_input
from pointsman_schemas.base import make_valid
from pointsman_schemas.card import Role
from pointsman_schemas.events import Answer, TaskReport
from pointsman_schemas.role_io import RemainingLimits, SummarizerInput
from pointsman_schemas.strategies import Fixed
from pointsman_schemas.strict_json import compact_json

__all__ = ["handoff_input", "known_results", "question_request", "question_subject", "task_report"]

_MAX_KNOWN_RESULTS = 20
"""Largest number of results in a question to a person. The number is limited, because a person does not read more, and
the workflow's log has all results."""

_MAX_KNOWN_CHARS = 4_000
"""Largest number of characters of the request, and of each result, in a question to a person."""


def handoff_input(state: State, task: Task) -> JsonValue:
    """Return the input of the handoff of `task`.

    A log contains the request and each result only once, so the recorded input of a task does not repeat them. This
    function adds them to the input of a role's task. A task for which the plan has no input receives the request.
    """
    if task.role is Role.WORK:
        if task.definition is not None and (task.item_of or task.definition.input_from):
            return expression_input(state, task)
        if task.input is not None:
            return task.input
        return _request_input(state, task)
    if task.role is Role.SUMMARIZE and state.thread is not None:
        so_far = state.history.summary if state.history else ""
        return SummarizerInput(summary=so_far, turns=state.thread.overflow).model_dump(mode="json")
    asked: dict[str, JsonValue] = {"request": state.input}
    if state.metadata and task.role is not Role.SYNTHESIZE:
        asked["metadata"] = state.metadata
    if task.role is Role.PLAN and (settled := [task_report(each) for each in state.plan_tasks() if each.settled]):
        asked["results"] = [each.model_dump(mode="json", exclude_defaults=True) for each in settled]
    if task.role is Role.PLAN and state.information_questions and (answers := _planner_answers(state)):
        asked["answers"] = answers
    if task.role is Role.PLAN:
        asked["remaining_limits"] = _remaining_limits(state, task).model_dump(mode="json", exclude_none=True)
    return {**asked, **task.input} if isinstance(task.input, dict) else asked


def _request_input(state: State, task: Task) -> JsonValue:
    """Return the input of a task for which the plan has no input: the request with its metadata.

    If the plan is fixed, the request may have a separate input for this task, in `inputs`.
    """
    if isinstance(state.input, str):
        return {**state.metadata, "request": state.input}
    if not isinstance(state.strategy, Fixed):
        return {**state.metadata, **state.input}
    inputs = state.input.get("inputs")
    if isinstance(inputs, dict) and inputs.get(task.id) is not None:
        return inputs[task.id]
    return {**state.metadata, **{name: value for name, value in state.input.items() if name != "inputs"}}


def question_subject(state: State, pending: OpenQuestion) -> JsonValue:
    """Return the value on which a person decides: the task's input, the tool's arguments or the plan."""
    if pending.plan is not None:
        return pending.plan.model_dump(mode="json", exclude_defaults=True)
    if pending.about == "task" and pending.task_id is not None:
        return handoff_input(state, state.tasks[pending.task_id])
    return pending.input


def _planner_answers(state: State) -> list[JsonValue]:
    """Return the answers to all questions of the workflow's planners."""
    planners = (task for task in state.tasks.values() if task.role is Role.PLAN)
    return [_planner_answer(each) for task in planners for each in task.answers if each.key]


def _planner_answer(answer: Answer) -> JsonValue:
    """Return an answer in the form for the planner, without the name of the person."""
    said: dict[str, JsonValue] = {"question": answer.text}
    if answer.verdict == "answered":
        return {**said, "answer": answer.input}
    why = "no answer arrived in time" if answer.verdict == "expired" else f"the person declined: {answer.reason}"
    return {**said, "unanswered": why}


def question_request(state: State) -> str | dict[str, JsonValue]:
    """Return the request of the workflow for a person. A long request is cut and becomes a text."""
    if isinstance(state.input, str):
        return _cut(state.input)
    text = compact_json(state.input).decode()
    return dict(state.input) if len(text) <= _MAX_KNOWN_CHARS else _cut(text)


def known_results(state: State) -> tuple[TaskReport, ...]:
    """Return the newest results of the workflow for a person. A long output is cut and becomes a text."""
    done = [each for each in state.plan_tasks() if each.status is TaskStatus.SUCCEEDED]
    return tuple(_short_report(each) for each in done[-_MAX_KNOWN_RESULTS:])


def _short_report(task: Task) -> TaskReport:
    report = task_report(task)
    text = compact_json(report.output).decode()
    if len(text) <= _MAX_KNOWN_CHARS:
        return report
    return report.model_copy(update={"output": _cut(report.output if isinstance(report.output, str) else text)})


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_KNOWN_CHARS else f"{text[:_MAX_KNOWN_CHARS]}..."


def _remaining_limits(state: State, planner: Task) -> RemainingLimits:
    return RemainingLimits.model_validate(
        {
            "seconds": max(0.0, (state.deadline - (planner.since or state.started_at)).total_seconds()),
            "replans": remaining_replans(state),
            **{name: max(bound - used, 0) for name, (used, bound) in usage_bounds(state).items()},
        }
    )


def task_report(task: Task) -> TaskReport:
    """Return the report of `task` for other agents.

    The values are not validated again: they were validated when they were read, and a validation of a large output is
    slow.
    """
    return make_valid(
        TaskReport,
        task_id=task.id,
        agent=task.agent,
        intent=task.intent,
        status=str(task.status),
        output=task.result.output if task.result and task.status in _OUTPUT_STATUSES else None,
        files=task.result.files if task.result and task.status in _OUTPUT_STATUSES else (),
        error=task.error.for_agents if task.error and task.status is not TaskStatus.SUCCEEDED else None,
    )


_OUTPUT_STATUSES = (TaskStatus.SUCCEEDED, TaskStatus.IN_REVIEW)
