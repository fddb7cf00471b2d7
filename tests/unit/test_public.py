"""`import pointsman` is what authors and callers need, costs nothing, and means the same whoever imports first."""

from __future__ import annotations

import subprocess
import sys

import pytest

import pointsman


def python(code: str) -> str:
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    return run.stdout.strip()


def test_these_are_the_public_names() -> None:
    assert pointsman.__all__ == [
        "ANY", "Adaptive", "Agent", "AgentFactory", "Check", "Choreography", "Client", "Context", "FanOut", "LLMAgent",
        "Limits", "Pipeline", "Router", "Stage", "Supervisor", "Team", "agent", "connect", "errors", "tool",
    ]  # fmt: skip


@pytest.mark.parametrize("name", pointsman.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(pointsman, name) is not None


def test_an_unknown_name_is_said_with_the_known_ones() -> None:
    with pytest.raises(AttributeError, match="LLMAgent"):
        _ = pointsman.Workflow  # type: ignore[attr-defined]


def test_importing_the_package_loads_nothing() -> None:
    code = "import sys, pointsman; print([m for m in sys.modules if m.startswith(('pointsman.', 'pydantic'))])"

    assert python(code) == "[]"


@pytest.mark.parametrize(
    "first",
    [
        "",
        "import pointsman.agent",
        "from pointsman.agent import Agent",
        "import pointsman.client",
        "import pointsman.tools",
    ],
)
def test_agent_is_the_decorator_whatever_was_imported_before(first: str) -> None:
    assert (
        python(f"{first}\nfrom pointsman import agent, Agent\nprint(callable(agent), Agent.__name__)") == "True Agent"
    )
