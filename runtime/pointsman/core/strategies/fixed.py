"""Start a workflow with a fixed plan: check the inputs of the request and accept the plan of the team's author."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import JsonValue, ValidationError

from pointsman.core.completion.caller_messages import explain_failure
from pointsman.core.completion.outcome import end_workflow
from pointsman.core.decision import Decision
from pointsman.core.model.lifecycle import Phase
from pointsman.core.model.state import State
from pointsman.core.planning.acceptance import accept_plan
from pointsman.util.schema_validation import value_problem
from pointsman_schemas.plan import PlannedTask
from pointsman_schemas.strategies import Fixed, FixedInput
from pointsman_schemas.strict_json import describe

__all__ = ["start_fixed"]

_CHILD_FIELDS = ("intent", "results")
"""Fields that `child_workflow.child_request` adds to the request, if another team hands a task to this team."""

_CORRECT_REQUEST_ADVICE = "Correct the request and publish it again under a new id."


def start_fixed(decision: Decision, strategy: Fixed) -> None:
    """Accept the plan. End the workflow if the request does not match the schema, or has inputs for unknown tasks."""
    if problem := _schema_problem(decision.state, strategy):
        return end_workflow(decision, Phase.FAILED, explain_failure(problem, _CORRECT_REQUEST_ADVICE), problem)
    inputs = _task_inputs(decision.state.input, strategy)
    if isinstance(inputs, str):
        return end_workflow(decision, Phase.FAILED, explain_failure(inputs, _CORRECT_REQUEST_ADVICE), inputs)
    tasks = tuple(_with_input(task, inputs.get(task.id)) for task in strategy.plan.tasks)
    goal = strategy.plan.goal or "Serve the request"
    return accept_plan(decision, strategy.plan.model_copy(update={"tasks": tasks, "goal": goal}), revision=1)


def _schema_problem(state: State, strategy: Fixed) -> str:
    """Return the difference between the request and the strategy's schema; an empty text if the request matches."""
    if strategy.input_schema is None:
        return ""
    if isinstance(state.input, str):
        return "the request is a text; an object with the fields of the team's input schema is expected"
    added = {"inputs"} if state.parent is None else {"inputs", *_CHILD_FIELDS}
    declared = strategy.input_schema.get("properties")
    added -= declared.keys() if isinstance(declared, dict) else set()
    fields = {name: value for name, value in state.input.items() if name not in added}
    problem = value_problem(strategy.input_schema, fields)
    return f"the request does not match the input schema of {state.team}: {problem}" if problem else ""


def _task_inputs(request: str | dict[str, JsonValue], strategy: Fixed) -> Mapping[str, JsonValue] | str:
    """Return the inputs in the request, by task id; a sentence about the fault if the inputs do not match the plan."""
    if isinstance(request, str):
        return {}
    try:
        inputs = FixedInput.model_validate(request).inputs
    except ValidationError as error:
        return f"the inputs of the request cannot be read: {describe(error)}"
    ids = [task.id for task in strategy.plan.tasks]
    if unknown := [task_id for task_id in inputs if task_id not in ids]:
        return f"the request has inputs for {', '.join(unknown)}; the tasks of the plan are {', '.join(ids)}"
    return inputs


def _with_input(task: PlannedTask, given: JsonValue) -> PlannedTask:
    """Return the task with the input from the request, if the plan has an input for the task.

    If the plan has no input for the task, the task is unchanged: `handoff_input` then reads the input from the request,
    which the log already contains.
    """
    if task.input is None or given is None:
        return task
    merged = {**task.input, **given} if isinstance(task.input, dict) and isinstance(given, dict) else given
    return task.model_copy(update={"input": merged})
