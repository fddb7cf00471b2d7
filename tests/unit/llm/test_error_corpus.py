"""Each wording of a provider's error is classified as transient or permanent, with its delay and the side at fault."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.corpus import errors

from pointsman.llm.errors import error_detail, error_from_status, error_from_stream_event
from pointsman.util.scrubber import hide_secret

CASES = errors()
OVERFLOW = {"retryable": False, "kind": "context_overflow"}


def names(case: dict[str, Any]) -> str:
    return str(case["name"])


@pytest.mark.parametrize("case", CASES, ids=names)
def test_a_recorded_error_has_its_class(case: dict[str, Any]) -> None:
    body = case["text"] if case["body"] is None else case["body"]

    error = error_from_status("p", case["status"], body, case.get("headers", {}))

    expected = dict(case.get("error", OVERFLOW))
    words = expected.pop("words", "")
    assert {name: getattr(error, name) for name in expected} == expected
    assert words in str(error)


@pytest.mark.parametrize("case", [case for case in CASES if "error" not in case], ids=names)
def test_an_error_in_a_200_has_the_class_that_its_words_have(case: dict[str, Any]) -> None:
    error = error_from_stream_event("p", case["body"])

    assert (error.kind, error.retryable) == ("context_overflow", False)


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.sampled_from(
        ["Please try again in 99999999999999999999s", "retry after 1e400 s", "{\"error\": [1]}", "[[]]", "\ud800",
         "1\x1f", "\u00b2", 10**400])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["error", "message", "code", "type", "details", "violations", "detail", "loc", "metadata",
                             "raw", "retryDelay", "retry_after", "X-RateLimit-Reset", "innererror", "param", "errors",
                             "seconds", "fieldViolations", "msg"]),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(JSON, st.integers(300, 599))
def test_any_body_of_an_error_is_a_model_error(body: Any, status: int) -> None:
    for error in (error_from_status("p", status, body, {}), error_from_stream_event("p", body)):
        assert str(error)
        assert error.retry_after is None or 0 <= error.retry_after <= 86_400
    assert error_detail(body).message is not None


@pytest.mark.usefixtures("no_secrets_in_use")
@pytest.mark.parametrize(
    ("secret", "said"),
    [
        ("x", "max_completion_tokens exceeds the context"),
        ("EMPTY", "the list is EMPTY; max_tokens"),
        ("none", "none of the slots is free"),
        ("token", "max_tokens: one token"),
        ("lm-studio", "lm-studio has no model loaded"),
        ("dummy", "a dummy is not a model"),
    ],
)
def test_the_keys_of_local_servers_take_no_word_out_of_an_error(secret: str, said: str) -> None:
    hide_secret(secret)

    assert said in str(error_from_status("p", 500, {"error": said}, {}))


@pytest.mark.usefixtures("no_secrets_in_use")
@pytest.mark.parametrize(
    "secret", ["sk-abcdefgh", "a-key-of-no-known-form", "0123456789", "gsk_12345678", "AIza" + "x" * 35]
)
@pytest.mark.parametrize("around", ["it was {}", "it was '{}', wasn't it", "key={};"])
def test_a_key_is_never_shown(secret: str, around: str) -> None:
    hide_secret(secret)

    assert secret not in str(error_from_status("p", 500, {"error": around.format(secret)}, {}))
