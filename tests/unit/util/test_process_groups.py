"""Commands run with and without process groups."""

from __future__ import annotations

import asyncio
import os
import sys

import pytest

from pointsman.util import process_groups
from pointsman.util.process_groups import kill_groups, run_process

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(60)]


@pytest.fixture(params=[True, False], ids=["groups", "no-groups"])
def with_groups(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Remove the functions that are missing on a system without process groups, if the parameter is False.

    The groups of other tests do not count, because their end may still be under way.
    """
    monkeypatch.setattr(process_groups, "_groups", set())
    if not request.param:
        monkeypatch.setattr(process_groups, "_HAS_GROUPS", False)
        monkeypatch.delattr(os, "killpg")
    return bool(request.param)


async def test_command_ends_with_its_code_and_output(with_groups: bool) -> None:
    program = "import sys; print(sys.stdin.read()); sys.exit(3)"

    done = await run_process(sys.executable, "-c", program, input=b"hello")

    assert (done.code, done.output.strip(), done.errors) == (3, b"hello", b"")


async def test_cancelled_command_is_ended(with_groups: bool) -> None:
    running = asyncio.create_task(run_process(sys.executable, "-c", "import time; time.sleep(600)"))
    while not process_groups._groups:
        await asyncio.sleep(0.01)
    (process,) = process_groups._groups

    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await process_groups.wait_until_ended()

    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


async def test_command_is_ended_when_this_process_exits(with_groups: bool) -> None:
    running = asyncio.create_task(run_process(sys.executable, "-c", "import time; time.sleep(600)"))
    while not process_groups._groups:
        await asyncio.sleep(0.01)

    kill_groups()

    assert (await running).code < 0
