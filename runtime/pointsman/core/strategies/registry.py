"""How each strategy begins and ends a workflow: the two tables that a new one is added to."""

from __future__ import annotations

from typing import assert_never

from pointsman.core.budget.team_quota import may_plan
from pointsman.core.completion.synthesis import answer_or_give_up
from pointsman.core.decision import Draft
from pointsman.core.planning.acceptance import too_many
from pointsman.core.planning.role_tasks import ask_classifier, ask_planner
from pointsman.core.strategies.choreography import begin_choreography
from pointsman.core.strategies.fan_out import begin_fan_out, finish_fan_out
from pointsman.core.strategies.pipeline import begin_pipeline, finish_pipeline
from pointsman.core.tasks.availability import missing
from pointsman_schemas.strategies import Adaptive, Choreography, FanOut, Pipeline, Router, Supervisor

__all__ = ["begin", "finish"]


def begin(draft: Draft) -> None:
    """Get a plan, or ask for one, as soon as somebody is there for it, unless there may be none."""
    if not may_plan(draft.open()).tasks:
        too_many(draft, 1, 0)
        return
    if missing(draft):
        return
    match draft.open().strategy:
        case Supervisor() | Adaptive() as strategy:
            ask_planner(draft, strategy)
        case Router() as strategy:
            ask_classifier(draft, strategy)
        case Pipeline() as strategy:
            begin_pipeline(draft, strategy)
        case FanOut() as strategy:
            begin_fan_out(draft, strategy)
        case Choreography() as strategy:
            begin_choreography(draft, strategy)
        case _ as never:
            assert_never(never)


def finish(draft: Draft) -> None:
    """The work is done, as far as it can be: have the answer written, or end."""
    match draft.open().strategy:
        case Supervisor() | Adaptive() | Router() | Choreography() as strategy:
            answer_or_give_up(draft, strategy)
        case Pipeline():
            finish_pipeline(draft)
        case FanOut() as strategy:
            finish_fan_out(draft, strategy)
        case _ as never:
            assert_never(never)
