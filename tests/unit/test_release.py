"""`make release` finds different versions, and archives with missing or forbidden files."""

from __future__ import annotations

import re
import shutil
import tarfile
import zipfile
from pathlib import Path

import pytest
from support.release import ROOT, archive_faults, build, tree_faults

MAKEFILE = (ROOT / "Makefile").read_text()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    build(ROOT, folder)
    return folder


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("pyproject.toml", "docker-compose.yml", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path)
    changes = tmp_path / "CHANGELOG.md"  # between two releases, the section has entries
    changes.write_text(re.sub(r"(## Unreleased\n).*?(?=^## )", r"\1\n", changes.read_text(), flags=re.M | re.S))
    return tmp_path


def change(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


def test_tree_of_a_release_has_one_version(tree: Path) -> None:
    assert list(tree_faults(tree)) == []

    change(tree / "pyproject.toml", 'version = "', 'version = "9.')

    assert len(list(tree_faults(tree))) == 3


def test_entries_without_a_version_are_a_fault(tree: Path) -> None:
    change(tree / "CHANGELOG.md", "## Unreleased\n", "## Unreleased\n\n- One more.\n")

    assert list(tree_faults(tree)) == ["CHANGELOG.md needs an empty section Unreleased above the version"]


def test_archives_of_the_tree_have_no_fault(built: Path) -> None:
    assert list(archive_faults(ROOT, built)) == []


def test_missing_and_unwanted_files_of_archives_are_named(built: Path, tmp_path: Path) -> None:
    shutil.copytree(built, tmp_path, dirs_exist_ok=True)
    (sdist,) = tmp_path.glob("*.tar.gz")
    (wheel,) = tmp_path.glob("*.whl")
    secret = tmp_path / "user.creds"
    secret.write_text("secret")
    stem = sdist.name.removesuffix(".tar.gz")
    with tarfile.open(built / sdist.name) as whole, tarfile.open(sdist, "w:gz", compresslevel=1) as changed:
        for member in whole.getmembers():
            if not member.name.endswith("/LICENSE"):
                changed.addfile(member, whole.extractfile(member))
        changed.add(secret, f"{stem}/tests/user.creds")
    with zipfile.ZipFile(built / wheel.name) as whole_wheel, zipfile.ZipFile(wheel, "w") as changed_wheel:
        for name in whole_wheel.namelist():
            if name != "pointsman/errors.py":
                changed_wheel.writestr(name, whole_wheel.read(name))
    secret.unlink()

    assert list(archive_faults(ROOT, tmp_path)) == [
        f"{sdist.name} has tests/user.creds, which no user needs",
        f"{sdist.name} has no LICENSE",
        f"runtime/pointsman/errors.py is in {sdist.name} and not in {wheel.name}",
    ]


def test_other_files_beside_the_archives_are_a_fault(built: Path, tmp_path: Path) -> None:
    shutil.copytree(built, tmp_path, dirs_exist_ok=True)
    (tmp_path / "pointsman-0.0.1.tar.gz").touch()

    (fault,) = archive_faults(ROOT, tmp_path)

    assert "pointsman-0.0.1.tar.gz" in fault


def test_make_release_runs_each_check_and_publishes_nothing() -> None:
    recipe = re.search(r"^release:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)

    assert recipe is not None
    steps = [line.strip().removeprefix("@") for line in recipe[1].splitlines()]
    order = ["support.release", "audit", "test", "dist", "support.release dist --install"]
    assert [step.endswith(end) for step, end in zip(steps, order, strict=True)] == [True] * 5
    assert "publish" not in recipe[1]
