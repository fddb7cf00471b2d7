"""A waiting command reports the start and the end of an outage on standard error."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest
from support.history import WORKFLOW, completed, store
from support.waiting import until

from pointsman.bus.memory.bus import MemoryBus
from pointsman.cli.commands import submit, trace, workflows
from pointsman.cli.render import wait_notices
from pointsman.cli.render.output import print_error
from pointsman.client.client import Client

HERE = {"url": None, "namespace": None, "json": True}


def ask(*, watch: bool) -> None:
    submit.submit(
        "shop", ["hello"], input_json=None, request_id=None, correlation_id=None, deadline=None, wait=True, watch=watch,
        timeout=0.1, **HERE,
    )  # fmt: skip


@pytest.mark.parametrize(
    "command",
    [
        lambda: ask(watch=False),
        lambda: ask(watch=True),
        lambda: workflows.watch(WORKFLOW, **HERE),
        lambda: trace.trace(WORKFLOW, follow=True, otlp=None, **HERE),
    ],
    ids=["submit", "submit --watch", "watch", "trace --follow"],
)
def test_waiting_command_reports_an_outage_on_standard_error_only(
    client: Client, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: Callable[[], None]
) -> None:
    *before, end = completed()
    ending: list[object] = []

    def said_so(message: str) -> None:
        print_error(message)
        ending.append(asyncio.ensure_future(store(client.bus, end, number=2)))

    asyncio.run(store(client.bus, *before))
    monkeypatch.setattr(MemoryBus, "connected", False)
    monkeypatch.setattr(wait_notices, "print_error", said_so)

    command()

    said = capsys.readouterr()
    assert said.err.splitlines().count("pointsman: lost the connection to the broker; waiting for the broker") == 1
    assert all(json.loads(line) for line in said.out.splitlines())


async def test_each_outage_is_reported_once_and_so_is_its_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = [True, False, False, True, True, False, True]
    monkeypatch.setattr(wait_notices, "_BROKER_CHECK_INTERVAL_S", 0.0)
    monkeypatch.setattr(MemoryBus, "connected", property(lambda _: seen.pop(0) if len(seen) > 1 else seen[0]))

    telling = asyncio.create_task(wait_notices.report_outages(MemoryBus()))
    await until(lambda: len(seen) == 1)
    await asyncio.sleep(0)
    telling.cancel()

    away, back = (
        "pointsman: lost the connection to the broker; waiting for the broker",
        "pointsman: connected to the broker again",
    )
    assert capsys.readouterr().err.splitlines() == [away, back, away, back]
