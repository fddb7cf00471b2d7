"""A team lists the agents and roles that it needs."""

from __future__ import annotations

import pytest

from pointsman_schemas.team import Check, Pipeline, PlanAndExecute, Router, Stage, Team


def test_planned_team_needs_its_planner_synthesizer_and_named_workers() -> None:
    team = Team(name="t", agents=("billing", "technical"))

    assert team.required_agents() == {
        "billing": "works",
        "technical": "works",
        "planner": "plans",
        "synthesizer": "synthesizes",
    }


def test_router_needs_all_agents_it_may_select() -> None:
    strategy = Router(synthesizer=None, fallback="desk", escalate=PlanAndExecute(planner="strategist"))

    assert Team(name="t", strategy=strategy).required_agents() == {
        "classifier": "classifies",
        "desk": "works",
        "strategist": "plans",
    }


@pytest.mark.parametrize("ignored", [PlanAndExecute(synthesizer="writer"), PlanAndExecute(fallback="desk")])
def test_unsupported_planner_options_of_a_router_are_refused(ignored: PlanAndExecute) -> None:
    with pytest.raises(ValueError, match="sets a synthesizer or a fallback, which the router does not use"):
        Router(escalate=ignored)

    assert Router(synthesizer="writer", escalate=PlanAndExecute(synthesizer="writer")).escalate is not None
    assert Router(synthesizer="writer", escalate=PlanAndExecute()).synthesizer == "writer"


def test_a_pipeline_needs_the_agents_of_its_stages_and_their_judges() -> None:
    stages = (Stage(agent="find"), Stage(agent="write", check=Check(judge="reviewer")))

    assert Team(name="t", strategy=Pipeline(stages=stages)).required_agents() == {
        "find": "works",
        "write": "works",
        "reviewer": "judges",
    }
