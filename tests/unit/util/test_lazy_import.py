"""A lazily imported module is loaded once, is complete for each thread, and is the module that an import finds."""

from __future__ import annotations

import importlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest

from pointsman.util.lazy_import import lazy_import

NAME = "lazy_import_of_a_test"

_PART = f"""
import {NAME}

{NAME}.entered.set()
assert {NAME}.go.wait(10)
ANSWER = object()
"""
_STRUCTLOG = "from pointsman.util.lazy_import import structlog"
_CLIENT = "from pointsman.bus.jetstream.client import NatsClient"
_RAISED = "try:\n 1 / 0\nexcept ZeroDivisionError:\n structlog.get_logger().exception('failed')"
_COPIES = """print([
    (name, each)
    for name, module in list(sys.modules.items()) if name.startswith("nats.js")
    for each in vars(module).values() if isinstance(each, type) and each.__module__.startswith("nats.js")
    if getattr(sys.modules[each.__module__], each.__name__) is not each
])"""
"""Prints classes that differ from the imported class with the same name, which shows that a module was loaded twice."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder for the package that a test writes."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / NAME).mkdir()
    yield tmp_path / NAME
    for each in [each for each in sys.modules if each.partition(".")[0] == NAME]:
        del sys.modules[each]


@pytest.fixture
def package(folder: Path) -> ModuleType:
    """Write a package whose `part` sets `entered` when it starts to load, and is complete after `go` is set."""
    (folder / "__init__.py").write_text("import threading\nentered, go = threading.Event(), threading.Event()\n")
    (folder / "part.py").write_text(_PART)
    (folder / "user.py").write_text(f"import {NAME}.part\n")
    with lazy_import(f"{NAME}.part"):
        importlib.import_module(f"{NAME}.user")
    return sys.modules[NAME]


def _printed(*lines: str) -> list[str]:
    """Run code in a new interpreter and return the printed lines."""
    code = "\n".join(("import sys", *lines))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    return done.stdout.splitlines()


def test_second_thread_waits_until_the_first_has_loaded_the_module(package: ModuleType) -> None:
    part = package.part
    asking = threading.Event()

    def read() -> object:
        asking.set()
        return part.ANSWER

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(lambda: part.ANSWER)
        assert package.entered.wait(10)
        second = threads.submit(read)
        assert asking.wait(10)
        package.go.set()

        assert first.result(10) is second.result(10)


def test_module_is_loaded_once_and_is_the_one_that_an_import_finds(package: ModuleType) -> None:
    package.go.set()
    part, start = package.part, threading.Barrier(4)

    def read(_: int) -> object:
        start.wait(10)
        return part.ANSWER

    with ThreadPoolExecutor(4) as threads:
        answers = set(threads.map(read, range(4)))

    whole = importlib.import_module(f"{NAME}.part")
    assert answers == {whole.ANSWER}
    assert package.part is whole


def test_attribute_read_inside_the_block_loads_the_module_at_once(folder: Path) -> None:
    (folder / "__init__.py").touch()
    (folder / "part.py").write_text("ANSWER = object()\n")
    (folder / "user.py").write_text(f"from {NAME}.part import ANSWER\n")

    with lazy_import(f"{NAME}.part"):
        user = importlib.import_module(f"{NAME}.user")

    assert user.ANSWER is sys.modules[f"{NAME}.part"].ANSWER
    assert sys.modules[NAME].part is sys.modules[f"{NAME}.part"]


def test_named_attribute_loads_its_module_when_called_or_read(folder: Path) -> None:
    (folder / "__init__.py").touch()
    (folder / "part.py").write_text("class Answer:\n    unit = 's'\n    def __init__(self, of): self.of = of\n")
    (folder / "user.py").write_text(f"from {NAME}.part import Answer\n")

    with lazy_import(f"{NAME}.part:Answer"):
        user = importlib.import_module(f"{NAME}.user")

    assert f"{NAME}.part" not in sys.modules
    assert (user.Answer(42).of, user.Answer.unit) == (42, "s")
    assert type(user.Answer(42)) is sys.modules[f"{NAME}.part"].Answer


def test_missing_attribute_is_an_attribute_error(package: ModuleType) -> None:
    package.go.set()

    assert not hasattr(package.part, "nothing")


def test_traceback_of_an_application_is_drawn_by_rich_as_without_us() -> None:
    without_us = _printed("import structlog", _RAISED)

    with_us = _printed(_STRUCTLOG, _RAISED)

    assert "─" in without_us[1]
    assert with_us[1:] == without_us[1:]  # without the first line, which has the time


def test_traceback_as_data_has_its_values_written_by_rich() -> None:
    processors = "[structlog.processors.dict_tracebacks, structlog.processors.JSONRenderer()]"

    written = _printed(
        _STRUCTLOG, f"structlog.configure(processors={processors})", "seen = {'key': ['value']}", _RAISED
    )

    assert "{'key': ['value']}" in written[0].replace("\\", "")


def test_threads_that_draw_the_first_tracebacks_at_once_draw_each_whole() -> None:
    printed = _printed(
        "import threading",
        _STRUCTLOG,
        "sys.setswitchinterval(1e-6)",
        "start, failed = threading.Barrier(6), []",
        "def draw():",
        " start.wait()",
        " try:",
        "  try:\n   1 / 0\n  except ZeroDivisionError:\n   structlog.get_logger().exception('failed')",
        " except BaseException as error:\n  failed.append(error)",
        "threads = [threading.Thread(target=draw) for _ in range(6)]",
        "[thread.start() for thread in threads]",
        "[thread.join() for thread in threads]",
        "print(failed)",
    )

    assert printed[-1] == "[]"
    assert sum("ZeroDivisionError: division by zero" in line for line in printed) == 6


def test_jetstream_of_nats_py_is_whole_for_an_application() -> None:
    assert _printed(_CLIENT, "print(type(NatsClient().jetstream()).__module__)") == ["nats.js.client"]


@pytest.mark.parametrize("part", ["api", "client", "errors"])
def test_jetstream_of_nats_py_is_loaded_once_whichever_part_is_imported_first(part: str) -> None:
    printed = _printed(_CLIENT, f"import nats.js.{part}", "print(nats.js.JetStreamContext.__name__)", _COPIES)

    assert printed == ["JetStreamContext", "[]"]


@pytest.mark.parametrize(("package", "part"), [("structlog", "rich"), ("nats", "nats.js")])
def test_package_that_was_imported_before_is_unchanged(package: str, part: str) -> None:
    before = f"import {package}, {part}\nmodules = dict(sys.modules)"
    same = "print([name for name, module in modules.items() if sys.modules[name] is not module])"

    assert _printed(before, _CLIENT, same) == ["[]"]
