"""A misspelled option of an author is refused. An unknown field of a received message is ignored."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field, ValidationError

from pointsman.settings import Settings
from pointsman_schemas.events import Budget
from pointsman_schemas.strict_json import describe
from pointsman_schemas.team import (
    Check,
    Choreography,
    FanOut,
    Limits,
    Pipeline,
    PlanAndExecute,
    RetryPolicy,
    Router,
    Stage,
    Team,
)


@pytest.mark.parametrize(
    ("made", "name", "meant"),
    [
        (RetryPolicy, "atempts", "attempts"),
        (Limits, "tokns", "tokens"),
        (Team, "agent", "agents"),
        (PlanAndExecute, "planer", "planner"),
        (Router, "treshold", "threshold"),
        (Pipeline, "stage", "stages"),
        (FanOut, "min_succes_ratio", "min_success_ratio"),
        (Choreography, "end_event", "end_events"),
        (Check, "feilds", "fields"),
        (Stage, "inten", "intent"),
        (Budget, "tokns", "tokens"),
        (Settings, "ackwait", "ack_wait"),
    ],
)
def test_a_misspelled_option_is_refused_and_the_nearest_named(made: Callable[..., Any], name: str, meant: str) -> None:
    with pytest.raises(TypeError, match=rf"has no '{name}'; did you mean {meant}\?"):
        made(**{name: 1})


def test_an_unknown_option_is_refused_with_the_existing_options() -> None:
    with pytest.raises(TypeError, match="Stage has no 'xyzzy'; it has agent, skill, name, intent, check"):
        Stage(agent="a", xyzzy=1)  # pyright: ignore[reportCallIssue]


def test_newer_fields_are_ignored() -> None:
    limits = Limits.model_validate_json(b'{"deadline": 5, "atempts": 9}')
    team = Team.model_validate({"name": "t", "strategy": {"kind": "router", "later": 1}, "later": {"a": 1}})

    assert limits == Limits(deadline=5)
    assert team == Team(name="t", strategy=Router())


def test_options_are_copied_as_any_value_is() -> None:
    team = Team(name="t", strategy=Router(), limits=Limits(deadline=5))

    assert copy.deepcopy(team) == pickle.loads(pickle.dumps(team)) == team.model_copy() == team


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"strategy": "supervisor"}, "strategy: a strategy is expected, such as PlanAndExecute()"),
        ({"strategy": PlanAndExecute}, "strategy: a strategy is expected, such as PlanAndExecute()"),
        ({"agents": ("a b",)}, "agents: a list of names is expected, each of 1 to 64 letters, digits, - and _, or ANY"),
        ({"agents": "a"}, "agents: a list of names is expected, each of 1 to 64 letters, digits, - and _, or ANY"),
        ({"name": "a b"}, "name: a name is expected, of 1 to 64 letters, digits, - and _"),
        ({"limits": 5}, "limits: an object is expected"),
    ],
    ids=str,
)
def test_validation_errors_are_in_plain_words(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Team(**{"name": "t", **given})

    assert describe(caught.value) == said


def test_one_stage_in_place_of_a_list_of_stages_is_named() -> None:
    stage: Any = Stage(agent="a")

    with pytest.raises(ValidationError) as caught:
        Pipeline(stages=stage)

    assert describe(caught.value) == "stages: a list of stages is expected, such as (Stage(agent='a'),)"


class _Suite(BaseModel):
    cases: Annotated[tuple[int, ...], Field(min_length=1)]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"cases": 5}, "cases: a list is expected"),
        ({"cases": []}, "cases: at least one is expected"),
        ({"cases": ["x"]}, "cases.0: Input should be a valid integer, unable to parse string as an integer"),
    ],
    ids=str,
)
def test_list_with_invalid_items_reports_the_items_only(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        _Suite(**given)

    assert describe(caught.value) == said
