"""Check that the version is the same everywhere, and that the archives in `dist/` have the expected files.

`python -m support.release` checks the working tree; `python -m support.release dist` also checks the archives.
`--install` also installs the wheel into an empty environment and runs the demo there. Nothing is published.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable, Iterator
from email.parser import Parser
from pathlib import Path

__all__ = ["archive_faults", "build", "tree_faults"]

ROOT = Path(__file__).parents[2]
_UNWANTED = re.compile(r"(^|/)(\.git|\.venv[^/]*|__pycache__|\.env|[^/]*\.(pyc|creds|nk|pem|key))(/|$)")
_NEEDED = ("LICENSE", "README.md", "CHANGELOG.md", "constraints.txt", "pyproject.toml", "Makefile", "docs/README.md")
_DEMO_SECONDS = 120


def tree_faults(root: Path) -> Iterator[str]:
    """Yield each place where the version of the release is missing or different."""
    version = _project(root)["version"]
    if not re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", version):
        yield f"pyproject.toml has the version {version!r}; expected X.Y.Z"
    images = set(re.findall(r"image: pointsman:(\S+)", (root / "docker-compose.yml").read_text()))
    if images != {version}:
        yield f"docker-compose.yml names the images {sorted(images)}; expected the version {version}"
    changes = (root / "CHANGELOG.md").read_text()
    if not re.search(rf"^## {re.escape(version)}\b", changes, re.MULTILINE):
        yield f"CHANGELOG.md has no entry for {version}"
    unreleased = re.search(r"^## Unreleased\n(.*?)^## ", changes, re.MULTILINE | re.DOTALL)
    if unreleased is None or unreleased[1].strip():
        yield "CHANGELOG.md needs an empty section Unreleased above the version"


def archive_faults(root: Path, folder: Path) -> Iterator[str]:
    """Compare the source archive and the wheel in `folder` with the working tree `root`. Yield each fault."""
    project = _project(root)
    stem = f"{project['name']}-{project['version']}"
    sdist, wheel = folder / f"{stem}.tar.gz", folder / f"{stem}-py3-none-any.whl"
    found = {each.name for each in folder.iterdir() if not each.name.startswith(".")}
    if found != {sdist.name, wheel.name}:
        yield f"{folder} has {sorted(found)}; expected {sdist.name} and {wheel.name} alone"
        return
    with tarfile.open(sdist) as archive:
        members = {each.name.removeprefix(f"{stem}/") for each in archive.getmembers() if each.isfile()}
        yield from _name_faults(sdist.name, members)
        yield from (f"{sdist.name} has no {name}" for name in _NEEDED if name not in members)
        packed = {name for name in members if name.startswith(("schemas/pointsman", "runtime/", "agents/"))}
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        yield from _name_faults(wheel.name, names)
        sources = {f"{top}/{name}" for name in names for top in ("schemas", "runtime", "agents")} & packed
        yield from (f"{name} is in {sdist.name} and not in {wheel.name}" for name in sorted(packed - sources))
        described = Parser().parsestr(archive.read(f"{stem}.dist-info/METADATA").decode())
        for field, expected in (
            ("Name", project["name"]),
            ("Version", project["version"]),
            ("Requires-Python", project["requires-python"]),
            ("License-Expression", project["license"]),
        ):
            if described[field] != expected:
                yield f"{wheel.name} has {field} {described[field]!r}; expected {expected!r}"
        if f"{stem}.dist-info/licenses/LICENSE" not in names:
            yield f"{wheel.name} has no LICENSE"


def build(root: Path, folder: Path) -> None:
    """Build the source archive and the wheel of `root` into `folder`."""
    subprocess.run([sys.executable, "-m", "hatchling", "build", "--directory", str(folder)], cwd=root, check=True)


def _project(root: Path) -> dict[str, str]:
    found: dict[str, str] = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    return found


def _name_faults(archive: str, names: Iterable[str]) -> Iterator[str]:
    yield from (f"{archive} has {name}, which no user needs" for name in sorted(names) if _UNWANTED.search(name))


def _uncommitted(root: Path) -> Iterator[str]:
    changed = subprocess.run(
        ["git", "status", "--porcelain"], cwd=root, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    yield from (f"{line[3:]} is not committed" for line in changed)


def _install_faults(root: Path, folder: Path) -> Iterator[str]:
    """Install the wheel from `folder` with the pinned dependencies, and run the demo outside the working tree."""
    (wheel,) = folder.glob("*.whl")
    with tempfile.TemporaryDirectory() as place:
        python = Path(place, "env", "bin", "python")
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(python.parents[1])], check=True)
        install = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", str(python), "--only-binary"]
        install += [":all:", "--constraint", str(root / "constraints.txt"), f"{wheel}[embedded]"]
        subprocess.run(install, check=True)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        demo = subprocess.run(
            [python.with_name("pointsman"), "demo", "--json"], cwd=place, capture_output=True, text=True,
            timeout=_DEMO_SECONDS, env={**environment, "POINTSMAN_MODEL": "offline"},
        )  # fmt: skip
        said = [json.loads(line) for line in demo.stdout.splitlines()]
        if [line["outcome"]["status"] for line in said if "outcome" in line] != ["completed"]:
            yield f"the demo of {wheel.name} did not complete: {demo.stderr[-1000:]}"


def main() -> int:
    """Print the faults. Return 1 if there are any."""
    parser = argparse.ArgumentParser(description="Check a release. Nothing is published.")
    parser.add_argument("dist", nargs="?", type=Path, help="the folder with the archives")
    parser.add_argument("--install", action="store_true", help="install the wheel and run the demo")
    chosen = parser.parse_args()
    faults = [*_uncommitted(ROOT), *tree_faults(ROOT)]
    if chosen.dist is not None:
        faults += archive_faults(ROOT, chosen.dist)
        if chosen.install and not faults:
            faults += _install_faults(ROOT, chosen.dist)
    sys.stdout.write("".join(f"{fault}\n" for fault in [*faults, f"{len(faults)} faults"]))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
