"""Reports must not delay work, so the number of unanswered reports is limited, and further reports are only counted."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
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
    """A bus that stores no message before a signal."""

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
    # A logger keeps the level of its first use, and an earlier test may have set the level to `error`.
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
        await asyncio.sleep(0)  # the publisher takes a report in the next turn of the event loop
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


class Reader:
    """Reads the broadcast text of an attempt with several calls in sequence."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, interval: float) -> None:
        monkeypatch.setattr(progress_publisher, "_BATCH_DELAY_S", 0.0)
        monkeypatch.setattr(progress_publisher, "_REPEAT_INTERVAL_S", interval)
        self.bus, self.subjects = MemoryBus(), Subjects("pointsman")
        self.reporter = BusProgressPublisher(
            self.bus, self.subjects, team="team", source="/test", correlation_id=None, causation_id="c",
            clock=SystemClock(),
        )  # fmt: skip
        self.heard: list[tuple[str, int, str]] = []

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        async with await self.bus.listen(self.subjects.workflow_deltas("team", "wf_1"), self._hear):
            yield

    async def _hear(self, stored: StoredMessage) -> None:
        piece = parse(Delta, stored.body)
        self.heard.append((piece.call, piece.offset, piece.text))

    async def write(self, call: str, text: str) -> None:
        count = len(self.heard)
        self.reporter.stream_text(Delta(workflow_id="wf_1", task_id="T1", attempt=1, agent="a", call=call, text=text))
        await until(lambda: len(self.heard) > count)


async def test_text_has_offsets_and_is_repeated_as_a_whole_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Reader(monkeypatch, interval=60.0)

    async with reader.listening():
        await reader.write("c1", "one ")
        await reader.write("c1", "two")
        await reader.write("c2", "again")
        await reader.write("c2", " and")
        await reader.reporter.flush()
        await until(lambda: len(reader.heard) == 5)
        await reader.reporter.flush()

    assert reader.heard == [
        ("c1", 0, "one "),
        ("c1", 4, "two"),
        ("c2", 0, "again"),
        ("c2", 5, " and"),
        ("c2", 0, "again and"),
    ]


async def test_a_reader_that_comes_while_nothing_is_written_gets_the_whole_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader = Reader(monkeypatch, interval=0.02)

    async with reader.listening():
        await reader.write("c1", "one ")
        await reader.write("c1", "two")
    reader.heard.clear()
    async with reader.listening():
        await until(lambda: len(reader.heard) >= 2)
        reader.reporter.stop()
        await reader.reporter.flush()  # ends with a repetition, as an attempt does
        for _ in range(5):
            await asyncio.sleep(0)  # what was sent is heard in the next turns of the event loop
        count = len(reader.heard)
        await asyncio.sleep(0.1)

    assert set(reader.heard) == {("c1", 0, "one two")}
    assert len(reader.heard) == count, "text was repeated after the attempt had ended"


async def test_pauses_between_repetitions_double_until_more_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, pauses = Reader(monkeypatch, interval=0.01), []
    repeat_after = reader.reporter._repeat_after

    def note_pause(pause: float) -> None:
        pauses.append(pause)
        repeat_after(pause)

    monkeypatch.setattr(reader.reporter, "_repeat_after", note_pause)
    async with reader.listening():
        await reader.write("c1", "one ")
        await until(lambda: len(pauses) >= 4)
        count = len(pauses)
        await reader.write("c1", "two")
        await until(lambda: 0.01 in pauses[count:])

    assert pauses[:4] == [0.01, 0.02, 0.04, 0.08]


async def test_a_text_that_is_too_long_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_publisher, "_MAX_REPEATED_CHARS", 5)
    reader = Reader(monkeypatch, interval=0.01)

    async with reader.listening():
        await reader.write("c1", "one two")
        await reader.write("c1", "!")
        await asyncio.sleep(0.05)
        await reader.reporter.flush()

    assert reader.heard == [("c1", 0, "one two"), ("c1", 7, "!")]
