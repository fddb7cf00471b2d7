"""The installed packages match the repository, and can be installed from any index."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from support.browser import find_chromium

_ROOT = Path(__file__).parents[2]
_PROJECT: dict[str, Any] = tomllib.loads((_ROOT / "pyproject.toml").read_text())
_SOURCES = [_ROOT / folder for folder in _PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]]


def _requirements() -> list[str]:
    project = _PROJECT["project"]
    groups = [*project["optional-dependencies"].values(), *_PROJECT["dependency-groups"].values()]
    return [*project["dependencies"], *(one for group in groups for one in group if isinstance(one, str))]


def test_the_project_asks_for_lower_bounds_and_caps_nats_py_alone() -> None:
    capped = {one for one in _requirements() if re.search(r"===?|~=|<", one.split(";")[0])}

    assert capped == {"nats-py>=2.16,<2.17"}  # capped, because Pointsman overrides private methods of nats-py


def _constraints() -> list[str]:
    return (_ROOT / "constraints.txt").read_text().replace(" \\\n", "").splitlines()


def test_constraints_are_exact_versions_with_digests_and_without_addresses() -> None:
    for line in _constraints():
        assert re.fullmatch(r"[a-z0-9-]+==[0-9][\w.]*( ; [\w .<>='!()]+)?(    --hash=sha256:[0-9a-f]{64})+", line), line


def test_every_requirement_has_a_constraint() -> None:
    constrained = {line.split("==")[0] for line in _constraints()}
    # `make venv` does not install this extra, because it needs half a gigabyte.
    optional = _PROJECT["dependency-groups"]["real-model"]
    asked = {re.split(r"[\[<>;= ]", one)[0].lower() for one in _requirements() if one not in optional}

    assert asked <= constrained, "run `make constraints`"


def test_make_installs_every_extra() -> None:
    installed = re.search(r"--editable '\.\[([\w,]+)\]'", (_ROOT / "Makefile").read_text())

    assert installed is not None
    assert sorted(_PROJECT["project"]["optional-dependencies"]) == installed[1].split(",")


@pytest.mark.parametrize("name", ["Makefile", ".ci/run", "Dockerfile", "docker-compose.yml", "pyproject.toml"])
def test_no_file_that_installs_names_an_index(name: str) -> None:
    text = (_ROOT / name).read_text()

    assert not re.search(r"--(extra-)?index|--find-links|PIP_|UV_INDEX", text)
    assert not re.search(r"https?://(?!127\.0\.0\.1|jaeger)", text)


def test_the_wheel_has_the_three_packages_whole(tmp_path: Path) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    for source in _SOURCES:
        for path in source.rglob("*"):
            if "__pycache__" not in path.parts and path.is_file():
                assert path.relative_to(source.parent).as_posix() in names
        assert f"{source.name}/py.typed" in names
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {source.name for source in _SOURCES}


def test_ci_runs_the_developer_commands_and_requires_a_browser_and_npm() -> None:
    commands = [line for line in (_ROOT / ".ci" / "run").read_text().splitlines() if line and line[0] != "#"]

    assert commands[:2] == ["set -euo pipefail", 'cd "$(dirname "${BASH_SOURCE[0]}")/.."']
    assert "export POINTSMAN_NEEDS_CHROMIUM=1 POINTSMAN_NEEDS_NPM=1" in commands
    assert [command for command in commands if command.startswith("make ")] == [
        "make venv", "make conformance >.venv/conformance.log 2>&1 &", "make test || failed=1",
    ]  # fmt: skip
    assert commands[-3:] == ["wait $! || failed=1", "cat .venv/conformance.log", "exit ${failed:-0}"]
    assert any("apt-get install" in command and "chromium" in command for command in commands)


def test_browser_tests_skip_without_a_browser_unless_one_is_declared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("POINTSMAN_NEEDS_CHROMIUM", raising=False)
    with pytest.raises(pytest.skip.Exception, match="there is no chromium here"):
        find_chromium(None)

    monkeypatch.setenv("POINTSMAN_NEEDS_CHROMIUM", "1")
    with pytest.raises(pytest.fail.Exception, match="there is no chromium here"):
        find_chromium(None)
    assert find_chromium("/usr/bin/chromium") == "/usr/bin/chromium"
