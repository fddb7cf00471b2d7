"""A task's span has the events of the task."""

from __future__ import annotations

import pytest
from support.history import WORKFLOW, at, dispatched, planned, started, store, succeeded
from support.spans import exporting

from pointsman.bus.memory.bus import MemoryBus
from pointsman.clock import SystemClock
from pointsman.core.evolve import apply_commit
from pointsman.core.model.state import State
from pointsman.engine.supervisor.spans import SupervisorSpans
from pointsman_schemas.events import AttemptError
from pointsman_schemas.log import (
    AttemptFailed,
    Commit,
    Entry,
    QuestionAsked,
    ResultIgnored,
    TaskFailed,
    TaskHeld,
    TaskReopened,
)
from pointsman_schemas.plan import PlannedTask
from pointsman_schemas.subjects import Subjects

SPAN = "0123456789abcdef"
BEGUN = dispatched("t1", "fitter", 1).model_copy(update={"span_id": SPAN})
HELD = TaskHeld(at=at(1), task_id="t1", until=at(3), reason="its circuit is open")
STOOD_IN = dispatched("t1", "helper", 3).model_copy(update={"fallback_for": "fitter", "span_id": SPAN})
IGNORED = ResultIgnored(
    at=at(4), event_id="e", task_id="t1", attempt=1, agent="fitter", cause="other_agent", reason="helper has it"
)
FAILED = TaskFailed(at=at(2), task_id="t1", error=AttemptError(kind="handler_error", message="no bolts"), attempts=1)
REOPENED = TaskReopened(at=at(3), task_id="t1", event_id="e", by="ann")
ASKED = AttemptFailed(
    at=at(3), event_id="e", task_id="t1", attempt=1, error=AttemptError(kind="needs_answer", message="pay")
)
QUESTION = QuestionAsked(at=at(3), question="wf-1", about="tool", task_id="t1", expires_at=at(99))
AGAIN = dispatched("t1", "fitter", 4, 2).model_copy(update={"span_id": SPAN})


@pytest.mark.parametrize(
    ("way", "told"),
    [
        ([BEGUN], []),
        ([HELD, BEGUN], ["pointsman.task_held"]),
        ([STOOD_IN, IGNORED], ["pointsman.fallback_used", "pointsman.result_ignored"]),
        ([BEGUN, IGNORED], ["pointsman.result_ignored"]),
        ([BEGUN, FAILED, REOPENED, AGAIN], ["pointsman.task_reopened"]),
        ([BEGUN, ASKED, QUESTION, AGAIN], ["pointsman.question_asked"]),
    ],
)
async def test_a_detour_of_a_task_is_an_event_of_its_span(way: list[Entry], told: list[str]) -> None:
    attempt = max(getattr(entry, "attempt", 1) for entry in way)
    log = [started(), *planned(PlannedTask(id="t1", agent="fitter", intent="fit")), *way]
    end = succeeded("t1", "fitter", 4, 5, attempt)
    bus, state = MemoryBus(), None
    spans = SupervisorSpans(bus, Subjects(), SystemClock(), "crew")
    commits: list[list[Entry]] = [log, [end]]

    with exporting() as exporter:
        for number, entries in enumerate(commits, 1):
            await store(bus, *entries, number=number)
            state = apply_commit(state, Commit(number=number, entries=tuple(entries)))
        assert isinstance(state, State)
        await spans.export_ended(state, [end])

    (span,) = exporter.get_finished_spans()
    assert span.name.startswith("invoke_agent ")
    assert dict(span.attributes or {})["pointsman.workflow.id"] == WORKFLOW
    assert [event.name for event in span.events] == told


async def test_an_answer_that_came_and_was_refused_is_one_end() -> None:
    log = [started(), *planned(PlannedTask(id="t1", agent="fitter", intent="fit")), BEGUN]
    state = apply_commit(None, Commit(number=1, entries=tuple(log)))

    with exporting() as exporter:
        await SupervisorSpans(MemoryBus(), Subjects(), SystemClock(), "crew").export_ended(
            state, [succeeded("t1", "fitter", 1, 2), FAILED]
        )

    assert [span.name for span in exporter.get_finished_spans()] == ["invoke_agent fitter"]
