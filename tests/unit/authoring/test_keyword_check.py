"""A mistyped keyword of a definition is answered with the keyword that was probably meant."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from pointsman import AgentFactory, LLMAgent, agent, mcp_tools, tool


@pytest.mark.parametrize(
    ("define", "keyword", "message"),
    [
        (LLMAgent, "instruction", "LLMAgent has no 'instruction'; did you mean instructions?"),
        (LLMAgent, "tool", "LLMAgent has no 'tool'; did you mean tools?"),
        (AgentFactory, "descripton", "AgentFactory has no 'descripton'; did you mean description?"),
        (agent, "skill", "agent has no 'skill'; did you mean skills?"),
        (tool, "time_out", "tool has no 'time_out'; did you mean timeout?"),
        (mcp_tools, "header", "mcp_tools has no 'header'; did you mean headers?"),
    ],
)
def test_mistyped_keyword_is_answered_with_the_meant_keyword(
    define: Callable[..., Any], keyword: str, message: str
) -> None:
    with pytest.raises(TypeError) as caught:
        define(**{keyword: "x"})

    assert str(caught.value) == message


def test_keyword_without_a_similar_name_lists_the_keywords() -> None:
    define: Callable[..., Any] = tool

    with pytest.raises(TypeError, match=r"^tool has no 'zzz'; it has name, description, timeout, retries, "):
        define(zzz=1)


def test_signature_of_a_checked_definition_is_its_own() -> None:
    assert list(inspect.signature(LLMAgent).parameters)[:3] == ["name", "description", "instructions"]
