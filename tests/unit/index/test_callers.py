"""The index counts each caller's running workflows and usage. Requests above the limits are refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from support.history import TEAM, ended, started

from pointsman.bus.memory.bus import MemoryBus
from pointsman.index import callers
from pointsman.index.callers import CallerLimitError, CallerLimits
from pointsman.index.workflows import WorkflowIndex
from pointsman.ports.bus import StoredMessage
from pointsman_schemas.envelope import Envelope, encode
from pointsman_schemas.events import Usage
from pointsman_schemas.log import Commit, Entry, WorkflowEnded, WorkflowResumed, WorkflowStarted
from pointsman_schemas.strict_json import dump
from pointsman_schemas.subjects import Subjects

NOW = datetime(2026, 1, 31, 23, 59, 59, tzinfo=UTC)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[datetime]:
    """Set the time to `NOW`. Return a list whose last item is the time."""
    times = [NOW]
    monkeypatch.setattr(callers, "_now", lambda: times[-1])
    return times


def message(
    sequence: int,
    workflow: str,
    *entries: Entry,
    headers: dict[str, str] | None = None,
) -> StoredMessage:
    commit = Commit(number=1, entries=entries)
    envelope = Envelope(id=str(sequence), type=Commit.event_type, source="test", time=NOW)
    return StoredMessage(
        f"pointsman.log.{TEAM}.{workflow}", dump(commit), {**encode(envelope), **(headers or {})}, sequence, NOW
    )


def index_of() -> WorkflowIndex:
    return WorkflowIndex(MemoryBus(), Subjects())


def begin(workflow: str, caller: str) -> WorkflowStarted:
    return started(workflow).model_copy(update={"caller": caller, "at": NOW})


def end(workflow: str, usage: Usage, *, at: datetime = NOW) -> WorkflowEnded:
    entry = ended("completed", 0, workflow=workflow)
    return entry.model_copy(update={"at": at, "outcome": entry.outcome.model_copy(update={"usage": usage})})


def refusal(index: WorkflowIndex, limits: CallerLimits) -> str:
    with pytest.raises(CallerLimitError) as caught:
        index.callers.check("ada", limits)
    assert caught.value.retry_after > 0
    return caught.value.kind


async def test_running_workflows_are_counted_from_the_request_to_the_end() -> None:
    index = index_of()
    index.callers.submitted("ada", "w1")
    assert index.callers.running("ada") == 1

    await index.apply(message(1, "w1", begin("w1", "ada")))
    await index.apply(message(2, "w2", begin("w2", "ada")))
    await index.apply(message(3, "w3", begin("w3", "bob")))
    assert (index.callers.running("ada"), refusal(index, CallerLimits(running=2))) == (2, "too_many_running")

    await index.apply(message(4, "w1", end("w1", Usage())))
    assert (index.callers.running("ada"), index.callers.running("bob")) == (1, 1)
    index.callers.check("ada", CallerLimits(running=2))


async def test_usage_of_today_counts_for_the_caller_alone(clock: list[datetime]) -> None:
    index = index_of()
    used = Usage(calls=1, input_tokens=60, output_tokens=40, cost=0.5)
    for number, (workflow, caller) in enumerate((("w1", "ada"), ("w2", "bob"), ("w3", "ada")), 1):
        await index.apply(message(number, workflow, begin(workflow, caller)))
    await index.apply(message(4, "w1", end("w1", used)))
    await index.apply(message(5, "w2", end("w2", used)))
    await index.apply(message(6, "w3", end("w3", used, at=NOW - timedelta(days=1))))

    assert index.callers.used_today("ada") == used
    assert refusal(index, CallerLimits(daily_calls=1)) == "daily_calls_used"
    assert refusal(index, CallerLimits(daily_tokens=100)) == "daily_tokens_used"
    assert refusal(index, CallerLimits(daily_cost=0.5)) == "daily_cost_used"
    index.callers.check("ada", CallerLimits(daily_tokens=101, daily_cost=0.6))

    clock.append(NOW + timedelta(seconds=1))
    assert index.callers.used_today("ada") == Usage()
    index.callers.check("ada", CallerLimits(daily_calls=1))


async def test_a_resumed_workflow_runs_again_and_its_further_usage_counts() -> None:
    index = index_of()
    await index.apply(message(1, "w1", begin("w1", "ada")))
    await index.apply(message(2, "w1", end("w1", Usage(calls=1, input_tokens=10))))
    resumed = WorkflowResumed(at=NOW, event_id="e", round=2, tasks=("t1",), deadline=NOW)
    await index.apply(message(3, "w1", resumed))
    assert index.callers.running("ada") == 1

    await index.apply(message(4, "w1", end("w1", Usage(calls=3, input_tokens=25))))
    assert (index.callers.running("ada"), index.callers.used_today("ada")) == (0, Usage(calls=3, input_tokens=25))


async def test_an_imported_workflow_neither_runs_nor_counts() -> None:
    index = index_of()
    imported = {"Pointsman-Imported": "elsewhere"}
    await index.apply(message(1, "w1", begin("w1", "ada"), headers=imported))
    assert index.callers.running("ada") == 0

    await index.apply(message(2, "w1", end("w1", Usage(calls=1, input_tokens=5)), headers=imported))
    assert index.callers.used_today("ada") == Usage()
