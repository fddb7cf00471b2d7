"""`import pointsman` is what authors and callers need, costs nothing, and means the same whoever imports first."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pointsman


def python(code: str) -> str:
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    return run.stdout.strip()


def undocumented(file: Path) -> Iterator[str]:
    """The functions and classes that a module exports, and that say nothing of themselves; an agent has a card."""
    body = ast.parse(file.read_text()).body
    lists = [each.value for each in body if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "__all__"]
    exported = {name for each in lists for name in ast.literal_eval(each)}
    for each in body:
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and each.name in exported:
            marks = " ".join(map(ast.unparse, each.decorator_list))
            if not ast.get_docstring(each) and marks != "overload" and "description=" not in marks:
                yield f"{file.name}: {each.name}"


def test_everything_that_a_module_exports_says_what_it_is() -> None:
    """The commands do so in `cli/declared`, where a person reads it."""
    top = Path(__file__).parents[2]
    files = [file for part in ("schemas", "runtime", "agents") for file in sorted((top / part).rglob("*.py"))]

    assert len(files) > 200
    assert [each for file in files if "cli" not in file.parts for each in undocumented(file)] == []


def test_these_are_the_public_names() -> None:
    assert pointsman.__all__ == [
        "ANY", "Adaptive", "Agent", "AgentFactory", "Check", "Choreography", "Client", "Context", "FanOut", "LLMAgent",
        "Limits", "Pipeline", "PlanAndExecute", "Router", "Stage", "Team", "agent", "connect", "errors", "tool",
    ]  # fmt: skip


@pytest.mark.parametrize("name", pointsman.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(pointsman, name) is not None


def test_an_unknown_name_is_said_with_the_known_ones() -> None:
    with pytest.raises(AttributeError, match="LLMAgent"):
        _ = pointsman.Workflow


def test_importing_the_package_loads_nothing() -> None:
    code = "import sys, pointsman; print([m for m in sys.modules if m.startswith(('pointsman.', 'pydantic'))])"

    assert python(code) == "[]"


@pytest.mark.parametrize(
    "first",
    [
        "",
        "import pointsman.authoring.agent",
        "from pointsman.authoring.agent import Agent",
        "import pointsman.client.client",
        "import pointsman.authoring.tools",
    ],
)
def test_agent_is_the_decorator_whatever_was_imported_before(first: str) -> None:
    assert (
        python(f"{first}\nfrom pointsman import agent, Agent\nprint(callable(agent), Agent.__name__)") == "True Agent"
    )
