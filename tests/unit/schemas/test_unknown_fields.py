"""An unknown field is reported with the name that was probably meant.

Class of fault: a misspelled field is silently ignored, so an order of tasks, a deadline or a limit is lost. Definitions
in code are refused. Events of other programs are accepted, and the ignored fields are reported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

import pointsman
from pointsman import PlannedTask
from pointsman_schemas.base import Options
from pointsman_schemas.events import Budget, Request
from pointsman_schemas.plan import Plan
from pointsman_schemas.team import Team
from pointsman_schemas.unknown_fields import MAX_UNKNOWN_FIELDS, closest_match, find_unknown_fields

MODELS = [
    each
    for name in pointsman.__all__
    if isinstance(each := getattr(pointsman, name), type) and issubclass(each, BaseModel)
]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_public_model_refuses_an_unknown_argument(model: Any) -> None:
    assert issubclass(model, Options)
    with pytest.raises(TypeError, match=rf"{model.__name__} has no 'xyzzy'; it has "):
        model(xyzzy=1)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: PlannedTask(id="a", agent="b", intent="c", dependencies=["d"]),
         "PlannedTask has no 'dependencies'; did you mean depends_on?"),
        (lambda: PlannedTask(id="a", agent="b", intent="c", needs=["d"]),
         "PlannedTask has no 'needs'; did you mean depends_on?"),
        (lambda: Plan(tasks=[{"id": "a", "agent": "b", "intent": "c", "dependson": []}]),
         "tasks.0 of Plan has no 'dependson'; did you mean depends_on?"),
        (lambda: Team(name="t", strategy={"kind": "router", "treshold": 1}),
         "strategy of Team has no 'treshold'; did you mean threshold?"),
        (lambda: Team(name="t", strategy={"kind": "fixed", "plan": {"tasks": [{"id": "a", "after": []}]}}),
         "strategy.plan.tasks.0 of Team has no 'after'; did you mean depends_on?"),
        (lambda: Team(name="t", limits={"dedline": 3}),
         "limits of Team has no 'dedline'; did you mean deadline?"),
        (lambda: Request(input="x", budget={"tokns": 3}),
         "budget of Request has no 'tokns'; did you mean tokens?"),
    ],
)  # fmt: skip
def test_what_people_write_is_refused_with_the_name_that_was_meant(make: Callable[[], object], said: str) -> None:
    with pytest.raises(TypeError) as refused:
        make()

    assert str(refused.value) == said


def test_values_of_any_form_are_not_searched() -> None:
    request = Request(input={"tokns": 1}, metadata={"a": [{"b": 1}]}, budget=Budget(calls=1))

    assert find_unknown_fields(Request, request.model_dump()) == []


def test_fields_within_lists_and_maps_are_found_with_their_paths() -> None:
    data = {
        "name": "t",
        "strategy": {"kind": "fixed", "plan": {"tasks": [{"id": "a"}, {"intnt": 1}]}, "checks": {"a": {"judg": "j"}}},
        "later": 1,
    }

    assert [each.path for each in find_unknown_fields(Team, data)] == [
        "strategy.plan.tasks.1.intnt",
        "strategy.checks.a.judg",
        "later",
    ]


def test_a_name_is_only_meant_if_the_data_lacks_it() -> None:
    given, lacking = {"deadline": 1, "deadlin": 2}, {"deadlin": 2}

    assert [each.meant for each in find_unknown_fields(Request, given)] == [None]
    assert [each.meant for each in find_unknown_fields(Request, lacking)] == ["deadline"]


@pytest.mark.parametrize("name", ["", "x", "\ud800", "é" * 1_000, "depends_on" * 100])
def test_any_name_can_be_compared(name: str) -> None:
    assert closest_match(name, ["depends_on", "id"]) is None


@pytest.mark.timeout(20)  # with the fault, the search for a similar name took half a minute
def test_only_the_first_unknown_fields_are_looked_for() -> None:
    data = {f"metadat{number}": 1 for number in range(60_000)}

    assert len(find_unknown_fields(Request, data)) == MAX_UNKNOWN_FIELDS
