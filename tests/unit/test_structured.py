"""structlog draws its tracebacks with rich as ever, which is loaded for the first of them and not before."""

from __future__ import annotations

import subprocess
import sys

_RICH = "print([name for name in sys.modules if name.split('.')[0] in ('rich', 'pygments', 'attr')] != [])"
_RAISED = "try:\n 1 / 0\nexcept ZeroDivisionError:\n structlog.get_logger().exception('failed')"


def said(*lines: str) -> list[str]:
    code = "\n".join(("import sys", *lines))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    return done.stdout.splitlines()


def test_structlog_is_imported_without_rich() -> None:
    assert said("from pointsman.structured import structlog", _RICH) == ["False"]


def test_a_traceback_of_an_application_is_still_drawn_by_rich() -> None:
    bare = said("import structlog", _RAISED)

    _, *drawn, loaded = said("from pointsman.structured import structlog", _RAISED, _RICH)

    assert "Traceback" in drawn[0]
    assert "─" in drawn[0]
    assert drawn == bare[1:]  # the first line has the time
    assert loaded == "True"


def test_a_traceback_as_data_has_its_values_written_by_rich() -> None:
    configured = (
        "structlog.configure(processors=[structlog.processors.dict_tracebacks, structlog.processors.JSONRenderer()])"
    )
    values = "if True:\n seen = {'key': ['value']}"

    ours = said("from pointsman.structured import structlog", configured, values, _RAISED)

    assert "{'key': ['value']}" in ours[0].replace("\\", "")


def test_rich_is_whole_afterwards() -> None:
    assert said("import pointsman.structured", "from rich.console import Console", "print(Console.__module__)") == [
        "rich.console"
    ]


def test_threads_that_draw_the_first_tracebacks_at_once_have_each_theirs() -> None:
    drawn = said(
        "import threading",
        "from pointsman.structured import structlog",
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

    assert drawn[-1] == "[]"
    assert sum("ZeroDivisionError: division by zero" in line for line in drawn) == 6
