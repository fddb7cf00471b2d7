"""How each strategy begins and ends a workflow: the two tables that a new one is added to."""

from __future__ import annotations

from typing import assert_never

from pointsman.core.budget.team_quota import quota
from pointsman.core.completion.synthesis import complete_workflow
from pointsman.core.decision import Decision
from pointsman.core.planning.acceptance import end_over_task_quota
from pointsman.core.planning.role_tasks import request_classification, request_plan
from pointsman.core.strategies.choreography import start_choreography
from pointsman.core.strategies.fan_out import complete_fan_out, start_fan_out
from pointsman.core.strategies.pipeline import complete_pipeline, start_pipeline
from pointsman.core.tasks.availability import missing_agent
from pointsman_schemas.strategies import Adaptive, Choreography, FanOut, Pipeline, PlanAndExecute, Router

__all__ = ["finish_workflow", "start_workflow"]


def start_workflow(decision: Decision) -> None:
    """Get a plan, or ask for one, as soon as somebody is there for it, unless there may be none."""
    if not quota(decision.state).tasks:
        end_over_task_quota(decision, 1, 0)
        return
    if missing_agent(decision):
        return
    match decision.state.strategy:
        case PlanAndExecute() | Adaptive() as strategy:
            request_plan(decision, strategy)
        case Router() as strategy:
            request_classification(decision, strategy)
        case Pipeline() as strategy:
            start_pipeline(decision, strategy)
        case FanOut() as strategy:
            start_fan_out(decision, strategy)
        case Choreography() as strategy:
            start_choreography(decision, strategy)
        case _ as never:
            assert_never(never)


def finish_workflow(decision: Decision) -> None:
    """The work is done, as far as it can be: have the answer written, or end."""
    match decision.state.strategy:
        case PlanAndExecute() | Adaptive() | Router() | Choreography() as strategy:
            complete_workflow(decision, strategy)
        case Pipeline():
            complete_pipeline(decision)
        case FanOut() as strategy:
            complete_fan_out(decision, strategy)
        case _ as never:
            assert_never(never)
