"""Imports of modules form no cycle. Imports in functions and for type checkers count, too."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_SOURCE_ROOTS = ("schemas", "runtime", "agents")


def _sources() -> dict[str, str]:
    """Return the source of each module of the project by module name."""
    sources = {}
    for folder in _SOURCE_ROOTS:
        for path in (_ROOT / folder).rglob("*.py"):
            parts = path.relative_to(_ROOT / folder).with_suffix("").parts
            sources[".".join(parts).removesuffix(".__init__")] = path.read_text()
    return sources


def _import_graph(sources: Mapping[str, str]) -> dict[str, set[str]]:
    """Return the imported modules of each module, including imports in functions.

    `from a import b` counts as an import of `a.b` if `a.b` is a module, and of `a` otherwise. `__init__` modules that
    Python also runs for a submodule do not count, because a package that re-exports its submodules would be a cycle.
    """
    graph: dict[str, set[str]] = {}
    for module, source in sources.items():
        named = graph[module] = set()
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                named |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{module} has a relative import"
                submodules = {f"{node.module}.{alias.name}" for alias in node.names}
                named |= {name if name in sources else str(node.module) for name in submodules}
        graph[module] = named & sources.keys()
    return graph


def _find_cycle(sources: Mapping[str, str]) -> str:
    """Return one cycle as text with the importing module first, or an empty string if there is no cycle."""
    try:
        TopologicalSorter(_import_graph(sources)).prepare()
    except CycleError as error:
        return " imports ".join(reversed(error.args[1]))
    return ""


def test_no_module_imports_itself_through_others() -> None:
    assert _find_cycle(_sources()) == ""


@pytest.mark.parametrize(
    "source",
    [
        "from p import a",
        "from p.a import X",
        "import p.a",
        "def f():\n    import p.a",
        "if TYPE_CHECKING:\n    import p.a",
    ],
)
def test_cycle_is_found_at_any_import(source: str) -> None:
    assert "p.a imports p.b" in _find_cycle({"p": "", "p.a": "import p.b", "p.b": source})
