"""Reports are worth less than the work they are about: so many are under way at a time, and the rest is counted."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs
from support.waiting import until

from pointsman.bus.memory.bus import MemoryBus
from pointsman.clock import SystemClock
from pointsman.engine.worker import progress_publisher
from pointsman.engine.worker.progress_publisher import BusProgressPublisher
from pointsman.ports.bus import StoredMessage
from pointsman_schemas.events import Delta, Progress
from pointsman_schemas.strict_json import parse
from pointsman_schemas.subjects import Subjects

AT_A_TIME = 256


class Slow(MemoryBus):
    """Stores nothing before it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may = asyncio.Event()

    async def publish(self, subject: str, body: bytes, headers: Mapping[str, str], **more: Any) -> int:
        await self.may.wait()
        return await super().publish(subject, body, headers, **more)


def report(number: int) -> Progress:
    return Progress(
        workflow_id="wf_1", task_id="T1", attempt=1, agent="busy", kind="progress", message=str(number),
        started_at=datetime.now(UTC),
    )  # fmt: skip


async def test_reports_from_any_thread_are_bounded_and_drops_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A logger keeps the level at which it was used first, and an earlier test may have set that to `error`.
    level = structlog.make_filtering_bound_logger("info")
    monkeypatch.setattr(progress_publisher, "_log", structlog.wrap_logger(None, wrapper_class=level))
    bus = Slow()
    subjects = Subjects("pointsman")
    reporter = BusProgressPublisher(
        bus, subjects, team="team", source="/test", correlation_id=None, causation_id="c", clock=SystemClock()
    )

    def many() -> None:
        for number in range(AT_A_TIME // 2 + 50):
            reporter.report(report(number))

    threads = [threading.Thread(target=many) for _ in range(2)]
    for thread in threads:
        thread.start()
    await asyncio.gather(*(asyncio.to_thread(thread.join) for thread in threads))
    bus.may.set()
    with capture_logs() as lines:
        await reporter.flush()
        reporter.report(report(-1))
        await asyncio.sleep(0)  # a report is taken up in the loop's next turn
        await reporter.flush()

    stored = [each async for each in bus.read("results", subjects.workflow_events("wf_1"))]
    assert len(stored) == AT_A_TIME + 1
    assert [line["count"] for line in lines if line["event"] == "reports_dropped"] == [100, 100]


async def test_streamed_text_is_broadcast_in_pieces_and_not_stored() -> None:
    bus, subjects = MemoryBus(), Subjects("pointsman")
    reporter = BusProgressPublisher(
        bus, subjects, team="team", source="/test", correlation_id=None, causation_id="c", clock=SystemClock()
    )
    heard: list[str] = []

    async def hear(stored: StoredMessage) -> None:
        heard.append(parse(Delta, stored.body).text)

    async with await bus.listen(subjects.workflow_deltas("team", "wf_1"), hear):
        for letter in "It was a dark and stormy night":
            reporter.stream_text(Delta(workflow_id="wf_1", task_id="T1", attempt=1, agent="busy", text=letter))
        await asyncio.sleep(0)
        await reporter.flush()
        await asyncio.sleep(0)

    assert heard == ["It was a dark and stormy night"]
    assert [each async for each in bus.read("log", ">")] == []


async def test_text_has_offsets_and_is_repeated_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_publisher, "_BATCH_DELAY_S", 0.0)
    bus, subjects = MemoryBus(), Subjects("pointsman")
    reporter = BusProgressPublisher(
        bus, subjects, team="team", source="/test", correlation_id=None, causation_id="c", clock=SystemClock()
    )
    heard: list[tuple[str, int, str]] = []

    async def hear(stored: StoredMessage) -> None:
        piece = parse(Delta, stored.body)
        heard.append((piece.call, piece.offset, piece.text))

    async def write(call: str, text: str) -> None:
        count = len(heard)
        reporter.stream_text(Delta(workflow_id="wf_1", task_id="T1", attempt=1, agent="a", call=call, text=text))
        await until(lambda: len(heard) > count)

    async with await bus.listen(subjects.workflow_deltas("team", "wf_1"), hear):
        await write("c1", "one ")
        await write("c1", "two ")
        monkeypatch.setattr(progress_publisher, "_REPEAT_INTERVAL_S", 0.0)
        reporter._repeat_at = 0.0
        await write("c1", "three")
        monkeypatch.setattr(progress_publisher, "_MAX_REPEATED_CHARS", 10)
        await write("c1", "!")
        monkeypatch.setattr(progress_publisher, "_REPEAT_INTERVAL_S", 60.0)
        await write("c2", "again")
        await write("c2", " and")
        await reporter.flush()
        await until(lambda: len(heard) == 7)

    assert heard == [
        ("c1", 0, "one "),
        ("c1", 4, "two "),
        ("c1", 0, "one two three"),
        ("c1", 13, "!"),
        ("c2", 0, "again"),
        ("c2", 5, " and"),
        ("c2", 0, "again and"),
    ]
