"""`import pointsman` has the public names, is fast, and has the same result in any import order."""

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
    """Return the exported functions and classes without a docstring. Agents are excluded, because they have cards."""
    body = ast.parse(file.read_text()).body
    lists = [each.value for each in body if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "__all__"]
    exported = {name for each in lists for name in ast.literal_eval(each)}
    for each in body:
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and each.name in exported:
            marks = " ".join(map(ast.unparse, each.decorator_list))
            if not ast.get_docstring(each) and marks != "overload" and "description=" not in marks:
                yield f"{file.name}: {each.name}"


def test_every_export_has_a_docstring() -> None:
    top = Path(__file__).parents[2]
    files = [file for part in ("schemas", "runtime", "agents") for file in sorted((top / part).rglob("*.py"))]

    assert len(files) > 200
    assert [each for file in files for each in undocumented(file)] == []


def test_public_names_are_these() -> None:
    assert pointsman.__all__ == [
        "ANY", "Adaptive", "Agent", "AgentCard", "AgentFactory", "AnswerRequiredError", "AnswerResult",
        "Archive", "AttemptInvocation", "BatchRow", "Budget", "BusUnavailableError", "BusyThreadError", "Check",
        "Choreography", "ClassifierInput", "Client", "ConfigurationError", "ConflictRuling", "Context",
        "ContractError", "DailyLimits", "DeadLetterEntry", "ErrorKind", "FanOut", "Fixed", "ForEach", "Gap", "History",
        "Interceptor", "JudgeInput", "LLMAgent", "Lifespan", "Limits", "ModelError", "ModelInvocation",
        "ModelReply", "ModelRequest", "Next", "NotFoundError", "Operations", "Outcome", "PastTurn", "Pipeline",
        "Plan", "PlanAndExecute", "PlanQuestion", "PlannedTask", "PlannerAnswer", "PlannerInput",
        "PointsmanError", "Progress", "Question", "Refinement", "RefinerInput", "RefusedError", "ReplayResult",
        "RetryPolicy", "Review", "ReviewInput", "Role", "Router", "Schedule", "ScheduleRefusedError", "ScheduleRun",
            "Schedules", "SelectedAgent", "Selection", "Settings",
        "Stage", "SummarizerInput", "Synthesis", "SynthesizerInput", "TaskError", "TaskReport", "Team",
        "Thread", "ThreadPolicy", "ThreadSummary", "Tool", "ToolInvocation", "UnansweredError", "Usage",
        "Workflow", "WorkflowEvent", "WorkflowSummary", "agent", "ask_person", "connect", "errors", "lifespan",
        "mcp_tools", "tool",
    ]  # fmt: skip


def test_public_names_are_imported_for_type_checkers_and_loaded_on_use() -> None:
    tree = ast.parse(Path(str(pointsman.__file__)).read_text())
    (guarded,) = [node for node in tree.body if isinstance(node, ast.If)]
    imported = {alias.name for node in guarded.body if isinstance(node, ast.ImportFrom) for alias in node.names}

    assert imported == set(pointsman.__all__)
    assert set(pointsman._HOME) == imported - {"errors"}


def test_shipped_agents_and_examples_import_from_pointsman_only() -> None:
    """Sample libraries may also import the offline model's keyword matching, to search texts."""
    top = Path(__file__).parents[2]
    allowed = {"pointsman", "pointsman.llm.offline.keyword_matching"}

    modules = {
        node.module
        for folder in ("agents", "examples")
        for file in (top / folder).rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module
    }

    assert {name for name in modules if name.startswith(("pointsman.", "pointsman_schemas"))} <= allowed


@pytest.mark.parametrize("name", pointsman.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(pointsman, name) is not None


def test_an_unknown_name_is_reported_with_the_known_names() -> None:
    with pytest.raises(AttributeError, match="LLMAgent"):
        _ = pointsman.Worfklow


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
def test_agent_is_the_decorator_after_any_import(first: str) -> None:
    assert (
        python(f"{first}\nfrom pointsman import agent, Agent\nprint(callable(agent), Agent.__name__)") == "True Agent"
    )
