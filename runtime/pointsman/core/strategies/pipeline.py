"""Run a pipeline of stages in sequence. A stage receives the results of earlier stages, and its output is checked."""

from __future__ import annotations

from collections.abc import Sequence

from pointsman.core.completion.outcome import end_workflow
from pointsman.core.completion.synthesis import failure_answer, raw_results
from pointsman.core.decision import Decision
from pointsman.core.model.lifecycle import Phase, TaskStatus
from pointsman.core.model.state import State, Task
from pointsman.core.planning.acceptance import accept_plan
from pointsman_schemas.plan import Plan, PlannedTask
from pointsman_schemas.strategies import Pipeline

__all__ = ["complete_pipeline", "start_pipeline"]


def start_pipeline(decision: Decision, strategy: Pipeline) -> None:
    """Accept the stages as the plan. Each stage depends on all earlier stages."""
    names = [stage.name for stage in strategy.stages]
    tasks = tuple(
        PlannedTask(
            id=stage.name,
            agent=stage.agent or "",
            skill=stage.skill,
            intent=stage.intent or f"Do the stage {stage.name} of serving the request",
            depends_on=tuple(names[:number]),
            retry=stage.retry,
        )
        for number, stage in enumerate(strategy.stages)
    )
    accept_plan(decision, Plan(goal="Serve the request, stage by stage", tasks=tasks), revision=1)


def complete_pipeline(decision: Decision) -> None:
    """End the workflow with the output of the last stage. If that output is missing, the reason names the failed stage.

    The stages are read from the plan and not from the strategy, because a person may have edited the plan.
    """
    state = decision.state
    stages = list(state.plan_tasks())
    stuck = next((stage for stage in stages if stage.status is not TaskStatus.SUCCEEDED), None)
    if stuck is None:
        last = stages[-1].result
        return end_workflow(decision, Phase.COMPLETED, last.output if last else None)
    reason = f"the stage {stuck.id} of {len(stages)} could not be done: {_stage_error(state, stuck)}"
    done = stages[: stages.index(stuck)]
    if not done:
        return end_workflow(decision, Phase.FAILED, failure_answer(state), reason)
    return end_workflow(
        decision, Phase.PARTIAL, raw_results(decision), f"{reason}; done before it: {_stage_seconds(done)}"
    )


def _stage_error(state: State, stage: Task) -> str:
    return stage.reason or state.reached_limit or (stage.error.message if stage.error else f"it is {stage.status}")


def _stage_seconds(stages: Sequence[Task]) -> str:
    return ", ".join(f"{stage.id} ({stage.work_seconds:.2f} s)" for stage in stages)
