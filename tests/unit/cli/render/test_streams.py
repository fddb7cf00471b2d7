"""Streamed text is shown completely to a waiting person. The columns of events are aligned for every name."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
from rich.console import Console
from support.history import dispatched, started, succeeded

from pointsman.cli.commands import submit
from pointsman.cli.render import follow
from pointsman.cli.render.follow import EVENT_TEXT_COLUMN, EventPrinter
from pointsman.client.client import Client
from pointsman_schemas.events import Delta

WORDS = "It was a dark and stormy night and the rain fell in torrents except at occasional intervals. "


def delta(text: str, task: str = "t1", agent: str = "writer") -> Delta:
    return Delta(workflow_id="wf_1", task_id=task, attempt=1, agent=agent, text=text)


def terminal(width: int) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)


def shown(console: Console) -> list[str]:
    return str(console.file.getvalue()).splitlines()  # type: ignore[attr-defined]


@pytest.mark.parametrize("width", [70, 80, 140])
@pytest.mark.parametrize("text", [WORDS * 3, "x" * 500, "short", "one\ntwo\n\nthree"])
def test_streamed_text_is_shown_whole_at_every_width(text: str, width: int) -> None:
    console = terminal(width)
    printer = EventPrinter(follow._text_width(console))

    for line in [*printer.text_lines(delta(text)), *printer.rest_of_text()]:
        line.print(console)

    parts = [line[EVENT_TEXT_COLUMN:] for line in shown(console)]
    assert "".join("".join(parts).split()) == "".join(text.split())
    assert all(len(line) <= width for line in shown(console))


def test_streamed_text_without_a_line_end_is_shown_before_the_end_of_its_task() -> None:
    printer = EventPrinter()
    lines = [(line.prefix + line.text).plain for line in printer.text_lines(delta("half a line", "t1", "fitter"))]

    for event in (started(), dispatched("t1", "fitter", 1), succeeded("t1", "fitter", 2, 3)):
        lines += [(line.prefix + line.text).plain for line in printer.lines(event)]

    (text,) = (index for index, line in enumerate(lines) if "half a line" in line)
    (end,) = (index for index, line in enumerate(lines) if "✓ fitter" in line)
    assert text + 1 == end


def test_tasks_of_one_agent_stream_their_own_lines() -> None:
    printer = EventPrinter()

    lines = [*printer.text_lines(delta("first ", "t1")), *printer.text_lines(delta("second ", "t2"))]
    lines += [*printer.text_lines(delta("task\n", "t1")), *printer.text_lines(delta("task\n", "t2"))]

    assert [line.text.plain for line in lines] == ["first task", "second task"]


@pytest.mark.parametrize("name", ["fitter", "a" * 16, "customer-service-technical", "n" * 60])
def test_text_of_an_event_begins_at_one_column_for_every_name(name: str) -> None:
    console = terminal(100)
    printer = EventPrinter()

    for line in [*printer.lines(started()), *printer.lines(dispatched("t1", name, 1))]:
        line.print(console)

    first, *rest = shown(console)
    assert first.startswith("   0.000s ▶ crew ")
    assert [line[EVENT_TEXT_COLUMN - 1 : EVENT_TEXT_COLUMN + 2] for line in (first, rest[-1])] == [" wf", " t1"]
    assert name in rest[0]


def test_event_is_one_line_in_a_pipe() -> None:
    pipe = Console(file=io.StringIO(), width=10_000)

    for line in EventPrinter().lines(dispatched("t1", "n" * 60, 1)):
        line.print(pipe)

    assert len(shown(pipe)) == 1


class StreamingWorkflow:
    """A workflow whose agent streams text before the outcome arrives."""

    id, team = "wf_1", "crew"

    def __init__(self, pieces: Sequence[str]) -> None:
        self.pieces = pieces

    async def stream_text(self, handle: Callable[[Delta], Awaitable[None]]) -> object:
        @asynccontextmanager
        async def streaming() -> AsyncIterator[None]:
            for piece in self.pieces:
                await handle(delta(piece))
            yield

        return streaming()

    async def outcome(self) -> str:
        return "the outcome"


@pytest.mark.parametrize(
    ("waits", "json", "streams"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_submit_streams_text_to_a_terminal_where_a_person_waits(
    client: Client, monkeypatch: pytest.MonkeyPatch, waits: bool, json: bool, streams: bool
) -> None:
    console = terminal(80) if waits else Console(file=io.StringIO())
    monkeypatch.setattr(submit, "console", lambda **_: console)
    workflow = StreamingWorkflow(["Tea", " is ready"])

    outcome = asyncio.run(submit._wait_for_outcome(client, workflow, watch=False, json=json))  # type: ignore[arg-type]

    assert outcome == "the outcome"  # type: ignore[comparison-overlap]
    assert ("".join(shown(console)).endswith("Tea is ready")) is streams
