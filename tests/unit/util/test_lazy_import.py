"""A module that is loaded late is whole for every thread that asks, whichever of them comes first."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest

from pointsman.util.lazy_import import loaded_late

_PART = """
import {package}

{package}.entered.set()
assert {package}.go.wait(10)
ANSWER = object()
"""


NAME = "loaded_late_by_a_test"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the package is that a test writes."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / NAME).mkdir()
    yield tmp_path / NAME
    for each in [each for each in sys.modules if each.partition(".")[0] == NAME]:
        del sys.modules[each]


@pytest.fixture
def package(folder: Path) -> ModuleType:
    """A package whose `part` has begun to load when `entered` is set, and is whole after `go` is."""
    (folder / "__init__.py").write_text("import threading\nentered, go = threading.Event(), threading.Event()\n")
    (folder / "part.py").write_text(_PART.format(package=NAME))
    (folder / "user.py").write_text(f"import {NAME}.part\n")
    with loaded_late(f"{NAME}.part"):
        importlib.import_module(f"{NAME}.user")
    return sys.modules[NAME]


def test_who_asks_while_another_thread_loads_it_waits_and_finds_it_whole(package: ModuleType) -> None:
    seen = package.part
    asks = threading.Event()

    def ask() -> object:
        asks.set()
        return seen.ANSWER

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(lambda: seen.ANSWER)
        assert package.entered.wait(10)
        second = threads.submit(ask)
        assert asks.wait(10)
        package.go.set()

        assert first.result(10) is second.result(10)


def test_it_is_loaded_once_and_is_the_module_that_an_import_finds(package: ModuleType) -> None:
    package.go.set()
    seen, start = package.part, threading.Barrier(4)

    def ask(_: int) -> object:
        start.wait(10)
        return seen.ANSWER

    with ThreadPoolExecutor(4) as threads:
        answers = set(threads.map(ask, range(4)))

    whole = importlib.import_module(f"{NAME}.part")
    assert answers == {whole.ANSWER}
    assert package.part is whole


def test_who_needs_it_at_once_has_it_at_once(folder: Path) -> None:
    (folder / "__init__.py").touch()
    (folder / "part.py").write_text("ANSWER = object()\n")
    (folder / "user.py").write_text(f"from {NAME}.part import ANSWER\n")

    with loaded_late(f"{NAME}.part"):
        user = importlib.import_module(f"{NAME}.user")

    assert user.ANSWER is sys.modules[f"{NAME}.part"].ANSWER
    assert sys.modules[NAME].part is sys.modules[f"{NAME}.part"]
