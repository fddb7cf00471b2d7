"""Turn the results of a workflow into its answer: by a synthesizer, as raw results, or as a reason for the failure."""

from __future__ import annotations

from pydantic import JsonValue

from pointsman.core.budget.team_quota import exhausted_quota
from pointsman.core.completion.caller_messages import (
    RAISE_LIMIT_ADVICE,
    START_AGENT_ADVICE,
    explain_failure,
    generic_failure,
)
from pointsman.core.completion.conflicts import find_conflicts
from pointsman.core.completion.outcome import conflict_decisions, end_workflow, find_gaps
from pointsman.core.decision import Decision
from pointsman.core.model.lifecycle import Phase, TaskStatus
from pointsman.core.model.state import State, unused_id
from pointsman.core.tasks.dispatch import add_role_task
from pointsman_schemas.card import Role
from pointsman_schemas.events import Result
from pointsman_schemas.plan import Plan
from pointsman_schemas.role_io import JudgeInput, SynthesizerInput
from pointsman_schemas.strategies import Adaptive, Choreography, FanOut, Fixed, Pipeline, PlanAndExecute, Router
from pointsman_schemas.strict_json import compact_json

__all__ = [
    "apply_synthesis",
    "complete_workflow",
    "dispatch_synthesizer",
    "failure_answer",
    "failure_summary",
    "final_phase",
    "raw_results",
    "request_ruling",
    "request_synthesis",
]

_RAW_RESULT_SHARE = 2
"""Raw results may be as large as the largest event, divided by this number. The reason is that the last commit of a
workflow can contain the last result twice: as a result and in the answer.
"""


def complete_workflow(decision: Decision, strategy: PlanAndExecute | Adaptive | Router | Choreography | Fixed) -> None:
    """Request a synthesis of the results, or end the workflow with its results or with a reason."""
    state = decision.state
    done = [task for task in state.plan_tasks() if task.status is TaskStatus.SUCCEEDED]
    if not done and state.tasks and all(task.intentionally_skipped for task in state.tasks.values()):
        return end_workflow(decision, Phase.COMPLETED, {}, "the conditions of the plan skipped every task")
    if not done:
        reason = (
            state.reached_limit
            or "; ".join([*failure_summary(state), exhausted_quota(state)]).strip("; ")
            or "no task was finished"
        )
        return end_workflow(decision, Phase.FAILED, failure_answer(state), reason)
    told = state.plan.final_instruction if state.plan else ""
    alone = isinstance(strategy, Router) and len(done) == 1 and len(list(state.plan_tasks())) == 1
    if alone and not told:
        return end_workflow(decision, final_phase(state), raw_results(decision))
    if request_ruling(decision):
        return None
    return request_synthesis(decision)


def failure_answer(state: State) -> str:
    """Return the answer of a workflow in which no task has succeeded."""
    if state.reached_limit:
        return explain_failure(state.reached_limit, START_AGENT_ADVICE if state.missing_agents else RAISE_LIMIT_ADVICE)
    errors = [task.error for task in state.plan_tasks() if task.error and task.status is TaskStatus.FAILED]
    return generic_failure(state.workflow_id, errors)


def request_ruling(decision: Decision) -> bool:
    """Ask the judge about contradictions. Return False without contradictions or a live judge, or after a limit."""
    state = decision.state
    if state.reached_limit or state.judge is None or decision.card(state.judge) is None:
        return False
    if not (found := find_result_conflicts(state)):
        return False
    asked = JudgeInput(request=state.input, conflicts=found)
    add_role_task(decision, unused_id(state, "judge"), Role.JUDGE, state.judge, "Decide what contradicts itself", asked)
    return True


def request_synthesis(decision: Decision) -> None:
    """Request the answer from the synthesizer. Without a synthesizer, the raw results are the answer."""
    state = decision.state
    strategy = state.strategy
    synthesizer = None if isinstance(strategy, Pipeline) else strategy.synthesizer
    if synthesizer is None:
        return end_workflow(decision, final_phase(state), raw_results(decision))
    # If each task has a different subject, different values of a field are often no contradiction. A team with such
    # tasks sets judge=None, so its synthesizer receives no contradictions. In a fan-out, all tasks have one subject.
    contradict = isinstance(strategy, FanOut) or state.judge is not None
    return dispatch_synthesizer(decision, synthesizer, find_result_conflicts(state) if contradict else ())


def find_result_conflicts(state: State) -> tuple[str, ...]:
    """Return the contradictions between the results of tasks that succeeded."""
    succeeded = (task for task in state.plan_tasks() if task.status is TaskStatus.SUCCEEDED and not task.item_of)
    return find_conflicts({task.id: task.result.output for task in succeeded if task.result})


def dispatch_synthesizer(decision: Decision, synthesizer: str, contradictions: tuple[str, ...] = ()) -> None:
    """Dispatch the synthesizer with the gaps, the contradictions and the decisions of the judge."""
    state = decision.state
    plan = state.plan or Plan()
    asked = SynthesizerInput(
        request=state.input,
        goal=plan.goal,
        final_instruction=plan.final_instruction,
        gaps=find_gaps(state),
        limit=state.reached_limit,
        conflicts=contradictions,
        decisions=conflict_decisions(state),
    )
    add_role_task(decision, unused_id(state, "synthesis"), Role.SYNTHESIZE, synthesizer, "Write the answer", asked)


def apply_synthesis(decision: Decision, result: Result) -> None:
    """End the workflow with the synthesizer's answer: the field `answer` of its output, or the whole output."""
    output = result.output
    answer = output["answer"] if isinstance(output, dict) and "answer" in output else output
    end_workflow(decision, final_phase(decision.state), answer)


def raw_results(decision: Decision) -> JsonValue:
    """Return the outputs by task id, or a single output unchanged. For too large outputs, return a sentence."""
    state = decision.state
    done = {
        task.id: task.result.output
        for task in state.answering_tasks()
        if task.result and task.status is TaskStatus.SUCCEEDED
    }
    bare: JsonValue = next(iter(done.values())) if len(done) == 1 else dict(done)
    if len(compact_json(bare)) <= decision.context.max_body // _RAW_RESULT_SHARE:
        return bare
    return f"The results of {', '.join(done)} are too large for one event; read them with `pointsman show`."


def final_phase(state: State) -> Phase:
    """Return `completed` if every task succeeded without a gap and no limit was reached; otherwise `partial`."""
    whole = all(
        task.intentionally_skipped or (task.status is TaskStatus.SUCCEEDED and not (task.result and task.result.gaps))
        for task in state.plan_tasks()
    )
    return Phase.COMPLETED if whole and not state.reached_limit else Phase.PARTIAL


def failure_summary(state: State) -> list[str]:
    """Return a list with one line for each failed task: its id and the reason for the failure."""
    return [
        f"{task.id}: {task.error.message}"
        for task in state.plan_tasks()
        if task.error and task.status is TaskStatus.FAILED
    ]
