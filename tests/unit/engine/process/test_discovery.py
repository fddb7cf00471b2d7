"""Agents are found in files, modules and packages. A failed search names the alternatives."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from pointsman.authoring.agent import Agent
from pointsman.engine.process import discovery
from pointsman.engine.process.discovery import load_agents, load_objects, load_worker
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
    """Return a file with two agents that imports a module beside it."""
    before, modules = list(sys.path), set(sys.modules)
    stem = "m" + tmp_path.name.replace("-", "_")
    (tmp_path / f"helper_of_{stem}.py").write_text('SKILL = "reading"')
    path = tmp_path / f"{stem}.py"
    path.write_text(SOURCE.format(stem=stem))
    yield path
    sys.path[:] = before
    for name in set(sys.modules) - modules:  # only these, because other removed modules would be loaded a second time
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


def test_module_that_ends_the_process_is_named(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    leaving = file.with_name(f"leaving_{file.stem}.py")
    leaving.write_text("import sys\nsys.exit(3)\n")
    entry = EntryPoint("leaving", f"leaving_{file.stem}", discovery.ENTRY_POINT_GROUP)
    monkeypatch.setattr(discovery, "installed_agents", lambda: {"leaving": entry})
    advice = 'it ends the process with sys.exit(3); call sys.exit only under if __name__ == "__main__"'

    found = []
    for spec in (str(leaving), leaving.stem, "leaving"):
        with pytest.raises(ConfigurationError) as caught:
            load_worker([spec])
        found.append(str(caught.value))

    assert found == [
        f"{leaving}, line 2, cannot be loaded: {advice}",
        f"{leaving.stem}, line 2, cannot be imported: {advice}",
        f"the installed agents leaving ({entry.value}) cannot be loaded: {advice}",
    ]


def test_missing_team_is_not_answered_with_advice_about_functions() -> None:
    with pytest.raises(ConfigurationError, match=r"json defines no Team; add Team\(\.\.\.\) to the module"):
        load_objects("json", Team)


AROUND = """
from pointsman import Interceptor, lifespan

class Guard(Interceptor):
    pass

@lifespan
async def database():
    yield "database"

second_guard, guard = Guard(), Guard()
"""


def test_a_module_brings_its_interceptors_and_lifespans_in_the_order_of_their_definition(file: Path) -> None:
    file.write_text(file.read_text() + AROUND)

    parts = load_worker([str(file), f"{file}:first"])

    assert [each.card.name for each in parts.agents] == ["first", "second"]
    module = sys.modules[type(parts.interceptors[0]).__module__]
    assert parts.interceptors == (module.second_guard, module.guard)
    assert [each.name for each in parts.lifespans] == ["database"]


def test_one_agent_of_a_module_comes_with_the_interceptors_and_lifespans_of_its_module(file: Path) -> None:
    file.write_text(file.read_text() + AROUND)

    parts = load_worker([f"{file}:second"])

    assert [each.card.name for each in parts.agents] == ["second"]
    assert (len(parts.interceptors), len(parts.lifespans)) == (2, 1)


def test_a_module_of_interceptors_alone_stands_around_the_agents_of_others(file: Path) -> None:
    alone = file.with_name(f"{file.stem}_around.py")
    alone.write_text(AROUND)

    before, after, one = (load_worker(specs) for specs in (
        [str(alone), str(file)], [str(file), str(alone)], [str(file), f"{alone}:guard"]
    ))  # fmt: skip

    assert [len(parts.agents) for parts in (before, after, one)] == [2, 2, 2]
    assert len(before.interceptors) == len(after.interceptors) == len(one.interceptors) == 2
    assert one.interceptors[0] is before.interceptors[1]  # the named object is found before other objects of its module
    with pytest.raises(ConfigurationError, match=r"_around\.py defines no Agent; name a module with agents, too"):
        load_worker([str(alone)])


def test_an_installed_package_brings_what_stands_around_its_agents(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text(file.read_text() + AROUND)
    monkeypatch.syspath_prepend(str(file.parent))
    entry = EntryPoint("reader", f"{file.stem}:both", discovery.ENTRY_POINT_GROUP)
    monkeypatch.setattr(discovery, "entry_points", lambda group: [entry])

    parts = load_worker(["reader"])

    assert (len(parts.agents), len(parts.interceptors), len(parts.lifespans)) == (2, 2, 1)


def test_an_interceptor_without_an_instance_is_named(file: Path) -> None:
    file.write_text(file.read_text() + AROUND.replace("second_guard, guard = Guard(), Guard()", ""))

    with pytest.raises(ConfigurationError, match=r"\.py defines the interceptor class Guard without an instance"):
        load_worker([str(file)])


@pytest.mark.parametrize("spec", ["json", "json:nothing", "nowhere.py"])
def test_a_worker_without_anything_to_run_reports_it(spec: str) -> None:
    with pytest.raises(ConfigurationError) as worker:
        load_worker([spec])
    with pytest.raises(ConfigurationError) as agents:
        load_agents([spec])

    assert str(worker.value) == str(agents.value)
