"""Ids contain only characters that a subject allows. Derived ids are stable."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from pointsman_schemas.errors import InvalidTokenError
from pointsman_schemas.ids import Token, derive_id, span_id_for, token, workflow_id_for

REFUSED = {
    "empty": "",
    "line end": "billing\r\nPUB x 0",
    "trailing line end": "billing\n",
    "space": "bill ing",
    "dot": "billing.eu",
    "star": "*",
    "full wildcard": ">",
    "dollar": "$JS",
    "65 characters": "a" * 65,
    "300 characters": "a" * 300,
    "not ASCII": "büro",
    "digits that are not ASCII": "٣",
    "null byte": "a\0",
    "lone surrogate": "\ud800",
}


@pytest.mark.parametrize("value", REFUSED.values(), ids=REFUSED)
def test_a_name_that_may_not_stand_in_a_subject_is_refused(value: str) -> None:
    with pytest.raises(InvalidTokenError, match="expected 1 to 64 of") as refused:
        token(value, "agent")

    assert str(refused.value).startswith("agent is ")
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize("value", REFUSED.values(), ids=REFUSED)
def test_models_refuse_the_same_names(value: str) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Token).validate_python(value)


@given(st.text(alphabet="abcXYZ0189_-", min_size=1, max_size=64))
def test_a_good_name_comes_back_unchanged(value: str) -> None:
    assert token(value, "agent") == value
    assert TypeAdapter(Token).validate_python(value) == value


@given(st.text(max_size=300), st.text(max_size=300))
def test_workflow_id_of_any_request_id_fits_a_subject(subject: str, request_id: str) -> None:
    made = workflow_id_for(subject, request_id)

    assert token(made, "workflow") == made
    assert made == workflow_id_for(subject, request_id)


def test_where_one_part_ends_matters() -> None:
    assert derive_id("ab", "c") != derive_id("a", "bc")
    assert derive_id("1:a") != derive_id("1", "a")


def test_span_ids_have_the_length_w3c_asks_for() -> None:
    assert len(span_id_for("wf_1", "workflow")) == 16
    assert span_id_for("wf_1", "a") != span_id_for("wf_1", "b")
