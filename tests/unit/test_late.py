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

from pointsman.late import loaded_late

_PART = """
import {package}

{package}.entered.set()
assert {package}.go.wait(10)
ANSWER = object()
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A package whose `part` has begun to load when `entered` is set, and is whole after `go` is."""
    name = "loaded_late_by_a_test"
    folder = tmp_path / name
    folder.mkdir()
    (folder / "__init__.py").write_text("import threading\nentered, go = threading.Event(), threading.Event()\n")
    (folder / "part.py").write_text(_PART.format(package=name))
    (folder / "user.py").write_text(f"import {name}.part\n")
    monkeypatch.syspath_prepend(tmp_path)
    with loaded_late(f"{name}.part"):
        importlib.import_module(f"{name}.user")
    yield sys.modules[name]
    for each in [each for each in sys.modules if each.partition(".")[0] == name]:
        del sys.modules[each]


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

    whole = importlib.import_module(f"{package.__name__}.part")
    assert answers == {whole.ANSWER}
    assert package.part is whole
