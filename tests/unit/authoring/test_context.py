"""The context for authors works in plain tests, in threads and on an event loop."""

from __future__ import annotations

import asyncio
import threading

import pytest

from pointsman.authoring.agent import agent
from pointsman.authoring.context import Context
from pointsman.authoring.ports import RecordingReporter
from pointsman.authoring.tools import tool
from pointsman.errors import ConfigurationError

AUTHORS_NAMES = {
    "agent", "ask", "attempt", "call", "cancelled", "chat", "confidence", "deadline", "dep", "emit", "event", "events",
    "feedback", "files", "for_test", "handoff", "history", "idempotency_key", "intent", "messages", "now",
    "progress",
    "record_usage", "replan", "replan_hint", "results", "run_process", "run_sync", "set_confidence", "stream_text",
    "task_id", "tool", "usage", "workflow_id",
}  # fmt: skip


@tool
def count(text: str, context: Context) -> int:
    """Count words."""
    context.progress("counting")
    return len(text.split())


@agent(name="plain", description="Counts words")
def plain(text: str, context: Context) -> int:
    counted = context.run_sync(context.call(count, text=text))
    context.stream_text("done")
    context.run_sync(context.emit("counted", counted))
    assert isinstance(counted, int)
    return counted


def test_a_context_has_the_names_of_authors_only() -> None:
    assert {name for name in dir(Context) if not name.startswith("_")} == AUTHORS_NAMES
    with pytest.raises(AttributeError):
        Context.for_test().journal = None  # type: ignore[attr-defined]


def test_a_plain_agent_runs_in_a_test_without_a_loop() -> None:
    reporter = RecordingReporter()

    counted = plain("one two three", Context.for_test(reporter=reporter))

    assert counted == 3
    assert [(each.kind, each.message or each.name) for each in reporter.reports] == [
        ("progress", "counting"),
        ("tool", "count"),
    ]
    assert [(event.name, event.data) for event in reporter.events] == [("counted", 3)]
    assert [delta.text for delta in reporter.deltas] == ["done"]


async def test_run_sync_runs_on_the_loop_of_the_context() -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    async def which() -> None:
        loops.append(asyncio.get_running_loop())

    context = Context.for_test()
    await asyncio.to_thread(lambda: context.run_sync(which()))

    assert loops == [asyncio.get_running_loop()]


async def test_run_sync_on_the_loop_says_to_await_and_blocks_nothing() -> None:
    context = Context.for_test()

    with pytest.raises(RuntimeError, match="write `await` instead"):
        context.run_sync(context.emit("counted"))


async def test_non_waiting_methods_are_called_alike_on_a_loop_and_in_a_thread() -> None:
    reporter = RecordingReporter()
    context = Context.for_test(reporter=reporter)

    def report() -> None:
        context.progress(threading.current_thread().name)
        context.stream_text("text")

    report()
    await asyncio.to_thread(report)

    assert len({report.message for report in reporter.reports}) == len(reporter.deltas) == 2


def test_a_missing_dependency_error_lists_the_existing_ones_and_the_fix() -> None:
    with pytest.raises(ConfigurationError, match=r"no dependency of type dict; the dependencies are: str\. Pass it"):
        Context.for_test(deps=["text"]).dep(dict)
