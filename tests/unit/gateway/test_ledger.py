"""The ledger follows the log: whose each workflow is, which run, and what each caller has used today."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from support.history import TEAM, ended, started

from pointsman.gateway.callers import Caller, CallerLimits
from pointsman.gateway.ledger import Ledger
from pointsman.gateway.problems import ProblemError
from pointsman.ports.bus import StoredMessage
from pointsman_schemas.envelope import Envelope, encode
from pointsman_schemas.events import Usage
from pointsman_schemas.log import Commit, Entry, WorkflowEnded, WorkflowResumed, WorkflowStarted
from pointsman_schemas.strict_json import dump

NOW = datetime.now(UTC)


def message(
    sequence: int,
    workflow: str,
    *entries: Entry,
    questions: tuple[str, ...] = (),
    headers: dict[str, str] | None = None,
) -> StoredMessage:
    commit = Commit(number=1, entries=entries, open_questions=questions)
    envelope = Envelope(id=str(sequence), type=Commit.event_type, source="test", time=NOW)
    return StoredMessage(
        f"pointsman.log.{TEAM}.{workflow}", dump(commit), {**encode(envelope), **(headers or {})}, sequence, NOW
    )


def begin(workflow: str, caller: str) -> WorkflowStarted:
    return started(workflow).model_copy(update={"caller": caller, "at": NOW})


def end(workflow: str, usage: Usage, *, at: datetime = NOW) -> WorkflowEnded:
    entry = ended("completed", 0, workflow=workflow)
    return entry.model_copy(update={"at": at, "outcome": entry.outcome.model_copy(update={"usage": usage})})


def refusal(ledger: Ledger, limits: CallerLimits) -> str:
    with pytest.raises(ProblemError) as caught:
        ledger.check(Caller("ada", limits=limits))
    assert caught.value.status == 429
    return caught.value.code


def test_running_workflows_are_counted_from_the_request_to_the_end() -> None:
    ledger = Ledger()
    ledger.submitted("ada", "w1")
    assert ledger.running("ada") == 1

    ledger.observe(message(1, "w1", begin("w1", "ada")))
    ledger.observe(message(2, "w2", begin("w2", "ada")))
    ledger.observe(message(3, "w3", begin("w3", "bob")))
    assert (ledger.running("ada"), refusal(ledger, CallerLimits(running=2))) == (2, "too_many_running")

    ledger.observe(message(4, "w1", end("w1", Usage())))
    assert (ledger.running("ada"), ledger.running("bob")) == (1, 1)
    ledger.check(Caller("ada", limits=CallerLimits(running=2)))


def test_usage_of_today_counts_for_the_caller_alone() -> None:
    ledger = Ledger()
    used = Usage(calls=1, input_tokens=60, output_tokens=40, cost=0.5)
    for number, (workflow, caller) in enumerate((("w1", "ada"), ("w2", "bob"), ("w3", "ada")), 1):
        ledger.observe(message(number, workflow, begin(workflow, caller)))
    ledger.observe(message(4, "w1", end("w1", used)))
    ledger.observe(message(5, "w2", end("w2", used)))
    ledger.observe(message(6, "w3", end("w3", used, at=NOW - timedelta(days=1))))

    assert ledger.used_today("ada") == used
    assert refusal(ledger, CallerLimits(daily_calls=1)) == "daily_calls_used"
    assert refusal(ledger, CallerLimits(daily_tokens=100)) == "daily_tokens_used"
    assert refusal(ledger, CallerLimits(daily_cost=0.5)) == "daily_cost_used"
    ledger.check(Caller("ada", limits=CallerLimits(daily_tokens=101, daily_cost=0.6)))


def test_rows_have_the_status_of_the_newest_commit() -> None:
    ledger = Ledger()
    ledger.observe(message(1, "w1", begin("w1", "ada"), questions=("w1-1",)))
    ledger.observe(message(2, "w1", questions=("w1-1",)))
    waiting = ledger.find("w1")
    assert waiting is not None
    seen = [waiting.status]
    ledger.observe(message(3, "w1"))
    seen.append(waiting.status)

    assert seen == ["waiting_for_answer", "running"]


def test_a_resumed_workflow_runs_again_and_its_further_usage_counts() -> None:
    ledger = Ledger()
    ledger.observe(message(1, "w1", begin("w1", "ada")))
    ledger.observe(message(2, "w1", end("w1", Usage(calls=1, input_tokens=10))))
    resumed = WorkflowResumed(at=NOW, event_id="e", round=2, tasks=("t1",), deadline=NOW)
    ledger.observe(message(3, "w1", resumed))
    assert ledger.running("ada") == 1

    ledger.observe(message(4, "w1", end("w1", Usage(calls=3, input_tokens=25))))
    assert (ledger.running("ada"), ledger.used_today("ada")) == (0, Usage(calls=3, input_tokens=25))


def test_an_imported_workflow_neither_runs_nor_counts() -> None:
    ledger = Ledger()
    imported = {"Pointsman-Imported": "elsewhere"}
    ledger.observe(message(1, "w1", begin("w1", "ada"), headers=imported))
    assert ledger.running("ada") == 0

    ledger.observe(message(2, "w1", end("w1", Usage(calls=1, input_tokens=5)), headers=imported))
    assert ledger.used_today("ada") == Usage()


def test_the_oldest_workflows_are_forgotten_and_the_rest_is_listed_newest_first() -> None:
    ledger = Ledger(kept=2)
    for number in (1, 2, 3):
        ledger.observe(message(number, f"w{number}", begin(f"w{number}", "ada")))

    assert [row.id for row in ledger.newest_first()] == ["w3", "w2"]
    assert [row.id for row in ledger.newest_first(before=3)] == ["w2"]
    assert (ledger.find("w1"), ledger.running("ada")) == (None, 2)
    assert dict(ledger.teams) == {TEAM: 2}
