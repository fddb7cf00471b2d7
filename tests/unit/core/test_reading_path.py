"""A reader must open only a few modules of the core to follow a message. `make reading-path` prints them."""

from __future__ import annotations

import pytest
from support.reading_path import ReadingPath, plan_path, request_path, result_path

MAX_REQUEST_MODULES = 12
MAX_RESULT_MODULES = 15


def test_request_reaches_its_first_handoff_through_few_modules() -> None:
    assert len(request_path().functions) <= MAX_REQUEST_MODULES, request_path()


def test_result_reaches_the_next_handoff_through_few_modules() -> None:
    assert len(result_path().functions) <= MAX_RESULT_MODULES, result_path()


@pytest.mark.parametrize("path", [request_path(), plan_path(), result_path()], ids=["request", "plan", "result"])
def test_each_path_leads_from_decide_through_evolve_to_outbox(path: ReadingPath) -> None:
    modules = list(path.functions)

    assert modules[0] == "decide"
    assert modules.index("evolve") < modules.index("outbox")
    assert {"decide", "build_handoff"} <= {*path.functions["decide"], *path.functions["outbox"]}
