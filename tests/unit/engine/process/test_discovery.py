"""Agents are found in files, modules and packages. A failed search names the alternatives."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from pointsman.authoring.agent import Agent
from pointsman.engine.process import discovery
from pointsman.engine.process.discovery import load_agents, load_objects
from pointsman.errors import ConfigurationError
from pointsman_schemas.team import Team

SOURCE = """
from __future__ import annotations
from dataclasses import dataclass
from helper_of_{stem} import SKILL
from pointsman.authoring.agent import agent

@dataclass
class Passage:
    text: str

@agent(description="First", skills=[SKILL])
async def first(passage: Passage) -> Passage:
    return passage

@agent(description="Second")
def second(text: str) -> str:
    return text

alias = first
both = [first, second]
number = 7
"""


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    """A file with two agents, and a neighbour it imports."""
    before, modules = list(sys.path), set(sys.modules)
    stem = "m" + tmp_path.name.replace("-", "_")
    (tmp_path / f"helper_of_{stem}.py").write_text('SKILL = "reading"')
    path = tmp_path / f"{stem}.py"
    path.write_text(SOURCE.format(stem=stem))
    yield path
    sys.path[:] = before
    for name in set(sys.modules) - modules:  # of others that were loaded meanwhile a second copy would be made
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def names(*specs: str) -> list[str]:
    return [agent.card.name for agent in load_agents(specs)]


def test_a_file_gives_its_agents_once_each(file: Path) -> None:
    assert names(str(file)) == ["first", "second"]
    assert names(str(file), f"{file}:second") == ["first", "second"]
    assert load_agents([str(file)])[0].card.skills == ("reading",)


def test_a_file_and_a_name_give_one_agent_or_a_list(file: Path) -> None:
    assert names(f"{file}:second") == ["second"]
    assert names(f"{file}:both") == ["first", "second"]


def test_a_module_is_found_in_the_folder_the_command_is_called_in(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)

    assert names(file.stem) == ["first", "second"]
    assert names(f"{file.stem}:first") == ["first"]


def test_an_installed_package_is_found_by_its_entry_point(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(file.parent))
    entry = EntryPoint("reader", f"{file.stem}:both", discovery.ENTRY_POINT_GROUP)
    monkeypatch.setattr(discovery, "entry_points", lambda group: [entry] if group == "pointsman.agents" else [])

    assert names("reader") == ["first", "second"]


def test_the_example_translates() -> None:
    (translator,) = load_agents([str(Path(__file__).parents[4] / "examples" / "translator.py")])

    assert translator.card.name == "translator"
    assert translator.card.skills == ("translation",)


def test_two_agents_of_one_name_are_refused(file: Path) -> None:
    other = file.with_name("other.py")
    other.write_text(file.read_text())

    with pytest.raises(ConfigurationError, match="two agents are called first"):
        load_agents([str(file), str(other)])


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("nowhere.py", "there is no file"),
        ("nowhere_at_all", "neither a module"),
        ("json", "defines no Agent"),
        ("json:dumps", "is a function"),
        ("json:nothing", "has no 'nothing'"),
        ("{file}:third", "its Agents are: first, second"),
        ("{file}:number", "is a int"),
        ("{folder}/broken.py", "ZeroDivisionError"),
        ("{folder}/missing.py", "no_such_library"),
    ],
)
def test_missing_target_is_answered_with_the_existing_ones(file: Path, spec: str, said: str) -> None:
    (file.parent / "broken.py").write_text("1 / 0")
    (file.parent / "missing.py").write_text("import no_such_library")

    with pytest.raises(ConfigurationError, match=said):
        load_objects(spec.format(file=file, folder=file.parent), Agent)  # type: ignore[type-abstract]


def test_error_in_a_file_is_reported_with_its_line(file: Path) -> None:
    bad = file.with_name("badteam.py")
    bad.write_text("from pointsman import Limits, Team\n\nteam = Team(name='a b', limits=Limits(deadline=1))\n")

    with pytest.raises(ConfigurationError) as caught:
        load_objects(str(bad), Team)

    assert str(caught.value).startswith(f"{bad}, line 3, cannot be loaded: ValidationError: name: a name is expected")
    assert "errors.pydantic.dev" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_error_in_a_module_is_reported_with_its_line(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    file.with_name(f"broken_{file.stem}.py").write_text("\n1 / 0\n")

    with pytest.raises(ConfigurationError, match=r", line 2, cannot be imported: ZeroDivisionError"):
        load_objects(f"broken_{file.stem}", Team)


def test_missing_team_is_not_answered_with_advice_about_functions() -> None:
    with pytest.raises(ConfigurationError, match=r"json defines no Team; give it one: Team\(\.\.\.\)"):
        load_objects("json", Team)
