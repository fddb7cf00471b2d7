"""Limits, budgets and deadlines accept only numbers that a workflow can use."""

from __future__ import annotations

import json
import math

import pytest
from pydantic import BaseModel, ValidationError

from pointsman_schemas.events import Budget, Request
from pointsman_schemas.team import Limits

COUNTS = [(model, name) for model in (Budget, Limits) for name in ("calls", "tokens", "tasks", "replans")]
TIMES = [(Request, "deadline"), (Limits, "deadline"), (Limits, "task_timeout"), (Limits, "answer_timeout")]


def build(model: type[BaseModel], name: str, value: object) -> BaseModel:
    return model.model_validate({name: value} | ({"input": "hello"} if model is Request else {}))


@pytest.mark.parametrize(("model", "name"), COUNTS)
@pytest.mark.parametrize("value", [-1, True, False, 1.5, "5", math.inf, math.nan])
def test_count_that_is_no_whole_number_from_0_is_refused(model: type[BaseModel], name: str, value: object) -> None:
    with pytest.raises(ValidationError):
        build(model, name, value)


@pytest.mark.parametrize("model", [Budget, Limits])
@pytest.mark.parametrize("value", [-0.5, True, "5", math.inf, math.nan])
def test_cost_that_is_no_amount_is_refused(model: type[BaseModel], value: object) -> None:
    with pytest.raises(ValidationError):
        build(model, "cost", value)


@pytest.mark.parametrize(("model", "name"), TIMES)
@pytest.mark.parametrize("value", [0, -1, 1e-9, 1e308, math.inf, math.nan, True, "5"])
def test_time_that_cannot_be_waited_for_is_refused(model: type[BaseModel], name: str, value: object) -> None:
    with pytest.raises(ValidationError):
        build(model, name, value)


@pytest.mark.parametrize(("model", "name"), [*COUNTS, *TIMES, (Budget, "cost"), (Limits, "cost")])
def test_whole_number_is_accepted_in_python_and_in_json(model: type[BaseModel], name: str) -> None:
    built = build(model, name, 5)

    assert getattr(built, name) == 5
    assert model.model_validate(json.loads(built.model_dump_json())) == built
    assert model.model_validate_json(built.model_dump_json()) == built
