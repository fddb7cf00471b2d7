"""The wheel works when it is installed outside the repository, with the oldest and the newest allowed packages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from functools import partial
from pathlib import Path

import pytest
import uv
from support.cluster import nats_server
from support.sizes import SIZE, sized

pytestmark = pytest.mark.timeout(max(240, SIZE.patience))

_ROOT = Path(__file__).parents[2]
_EXTRAS: list[str] = sorted(tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
_WHEELS = ("--only-binary", ":all:")


def _run(*command: str | Path, cwd: Path, path: str | None = None) -> str:
    """Run a command without the sources and settings of this process, with `path` as PATH. Return its output."""
    telling = ("PYTHON", "POINTSMAN_", "OTEL_", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(telling)}
    environment |= {"PATH": path} if path else {}
    ran = subprocess.run(
        [str(each) for each in command], cwd=cwd, capture_output=True, text=True, check=False,
        env={**environment, "POINTSMAN_MODEL": "offline", "OPENAI_API_KEY": "", "ANTHROPIC_API_KEY": ""},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    _run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder, cwd=_ROOT)
    (built,) = folder.glob("*.whl")
    return built


def _see_that_it_works(environment: Path, folder: Path) -> None:
    """Check that every command exists and that the demo answers from the installed packages."""
    python, pointsman = environment / "bin" / "python", environment / "bin" / "pointsman"
    run = partial(_run, cwd=folder, path=os.defpath)  # the system's PATH, which has no nats-server
    where = run(python, "-c", "import pointsman; print(pointsman.__file__)")
    helped = run(pointsman, "--help")
    said = [json.loads(line) for line in run(pointsman, "demo", "--json").splitlines()]

    assert Path(where.strip()).is_relative_to(environment)
    assert "dashboard" in helped
    assert [line["outcome"]["status"] for line in said if "outcome" in line] == ["completed"]


def test_a_team_runs_from_the_installed_wheel(wheel: Path, tmp_path: Path) -> None:
    """The test uses the dependencies of this environment, so it needs no package index."""
    environment = tmp_path / "environment"
    python = environment / "bin" / "python"
    _run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=tmp_path)
    _run(uv.find_uv_bin(), "pip", "install", "--offline", "--no-deps", "--python", python, wheel, cwd=tmp_path)
    (packages,) = environment.glob("lib/python*/site-packages")
    others = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    # A .pth file that adds the folders, without editable installs.
    (packages / "others.pth").write_text("\n".join(others))
    (environment / "bin" / "nats-server").symlink_to(nats_server())

    _see_that_it_works(environment, tmp_path)


@sized
@pytest.mark.parametrize("extras", [["embedded"], _EXTRAS], ids=["few", "all"])
@pytest.mark.parametrize(("python", "resolution"), SIZE.installed)
def test_team_runs_with_the_oldest_and_newest_dependencies(
    wheel: Path, tmp_path: Path, python: str, resolution: str, extras: list[str]
) -> None:
    environment, versions, install = tmp_path / "environment", tmp_path / "versions.txt", (uv.find_uv_bin(), "pip")
    wanted = [word for extra in extras for word in ("--extra", extra)]
    _run(uv.find_uv_bin(), "venv", "--no-python-downloads", "--python", python, environment, cwd=tmp_path)
    to = ("--python", environment / "bin" / "python")

    given = ("--resolution", resolution, _ROOT / "pyproject.toml", "--output-file", versions)
    _run(*install, "compile", *_WHEELS, *to, *wanted, *given, cwd=tmp_path)
    _run(*install, "install", *_WHEELS, *to, "--requirements", versions, cwd=tmp_path)
    _run(*install, "install", "--no-deps", *to, wheel, cwd=tmp_path)
    _run(*install, "check", *to, cwd=tmp_path)

    _see_that_it_works(environment, tmp_path)
