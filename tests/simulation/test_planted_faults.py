"""The audit finds planted mistakes. Each mistake breaks an invariant in at least a few worlds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import count, islice
from typing import Any

import pytest

from pointsman.core import decide, results
from pointsman.core.budget import reservation
from pointsman.core.budget.team_quota import quota
from pointsman.core.decision import Decision
from pointsman.core.model.inputs import ResultReceived
from pointsman.core.model.state import State, Task
from pointsman.engine.supervisor.engine import SupervisorEngine
from pointsman.engine.supervisor.outbox_publisher import OutboxPublisher
from pointsman.engine.supervisor.retention import RetentionJob
from pointsman.engine.worker.handoff_processor import HandoffProcessor
from pointsman.testing.faults import FaultyBus
from pointsman_schemas.events import PlanUsage
from pointsman_schemas.log import Entry
from simulation.world import World

_ENOUGH = 120
"""Number of worlds in which each mistake must show at least once. The rarest mistake shows in one world of thirty,
because a worker must crash after it has acknowledged a handoff too early."""


def _acknowledged_first(patch: pytest.MonkeyPatch) -> None:
    turn = SupervisorEngine._process_batch

    async def hasty(self: SupervisorEngine, workflow: str, arrivals: Sequence[Any]) -> None:
        for arrival in arrivals:
            await arrival.delivery.ack()
        await turn(self, workflow, arrivals)

    patch.setattr(SupervisorEngine, "_process_batch", hasty)


def _sent_without_expectation(patch: pytest.MonkeyPatch) -> None:
    publish = FaultyBus.publish

    async def careless(
        self: FaultyBus,
        subject: str,
        body: bytes,
        headers: Mapping[str, str],
        *,
        expect: int | None = None,
        **more: Any,
    ) -> int:
        return await publish(self, subject, body, headers, expect=expect or None, **more)

    patch.setattr(FaultyBus, "publish", careless)


def _only_the_new_is_sent(patch: pytest.MonkeyPatch) -> None:
    async def forgetful(self: OutboxPublisher, state: State, entries: Sequence[Entry] = ()) -> None:
        await self.publish_new(state, entries)

    patch.setattr(OutboxPublisher, "republish_all", forgetful)


def _late_results_count(patch: pytest.MonkeyPatch) -> None:
    result = results.on_result

    def lenient(decision: Decision, received: ResultReceived) -> None:
        task = decision.state.tasks.get(received.result.task_id)
        if task is not None and task.active and received.result.status == "succeeded":
            results._complete_task(decision, task, received)
        else:
            result(decision, received)

    patch.setattr(decide, "on_result", lenient)


def _handoffs_acknowledged_first(patch: pytest.MonkeyPatch) -> None:
    process = HandoffProcessor._run_handoff

    async def hasty(self: HandoffProcessor, job: Any, envelope: Any, handoff: Any) -> None:
        await job.delivery.ack()
        await process(self, job, envelope, handoff)

    patch.setattr(HandoffProcessor, "_run_handoff", hasty)


def _nothing_set_aside(patch: pytest.MonkeyPatch) -> None:
    def generous(state: State, asking: Task | None = None) -> dict[str, float]:
        return {"calls": 0, "tokens": 0, "cost": 0.0}

    patch.setattr(reservation, "reserved", generous)


def _all_that_is_left_for_each_team(patch: pytest.MonkeyPatch) -> None:
    def generous(state: State, task: Task, teams: object) -> PlanUsage:
        return quota(state)

    patch.setattr(reservation, "team_share", generous)


def _only_what_has_begun_is_cancelled(patch: pytest.MonkeyPatch) -> None:
    async def blind(*_: object, **__: object) -> None:
        return None

    patch.setattr("pointsman.engine.supervisor.decoder.find_request", blind)


def _trimmed_though_it_runs(patch: pytest.MonkeyPatch) -> None:
    over_since = RetentionJob._ended_at

    async def blind(self: RetentionJob, subject: str) -> datetime:
        if subject.split(".")[1] in ("log", "outcome", "event"):  # otherwise only the deleted log would show
            return await over_since(self, subject)
        return datetime.min.replace(tzinfo=UTC)

    patch.setattr(RetentionJob, "_ended_at", blind)


def _logs_removed_though_asked_for(patch: pytest.MonkeyPatch) -> None:
    async def blind(self: RetentionJob, requests: str, untaken: int) -> None:
        pass

    patch.setattr(RetentionJob, "_keep_unsettled_requests", blind)


_FITTING: Mapping[object, Callable[[World], bool]] = {
    _trimmed_though_it_runs: lambda world: world.trim_pause < 3_600,
    _logs_removed_though_asked_for: lambda world: world.settings.retention_days < 1,
}
"""Conditions for mistakes that can show only in some worlds."""


@pytest.mark.parametrize(
    ("plant", "expected", "likely"),
    [
        pytest.param(_acknowledged_first, "has no outcome", 3, id="inputs acknowledged before the commit"),
        pytest.param(_sent_without_expectation, "times", 1, id="messages sent without an expected sequence"),
        pytest.param(_only_the_new_is_sent, "has no outcome", 2, id="recovery that sends only new messages"),
        pytest.param(_late_results_count, "was accepted", 5, id="late results that count"),
        pytest.param(_only_what_has_begun_is_cancelled, "cancels what", 3, id="lost cancellations of queued requests"),
        pytest.param(
            _handoffs_acknowledged_first, "never answered", 50, id="handoffs acknowledged before their result"
        ),
        pytest.param(
            _all_that_is_left_for_each_team, "in its tree", 45, id="a task limit for each team instead of the tree"
        ),
        pytest.param(_trimmed_though_it_runs, "times", 22, id="trimmed messages of running workflows"),
        pytest.param(_logs_removed_though_asked_for, "began again", 219, id="removed logs with a pending request"),
        pytest.param(_nothing_set_aside, "set aside of", 35, id="budgets that are shared twice"),
    ],
)
def test_a_planted_mistake_shows(
    plant: Callable[[pytest.MonkeyPatch], None], expected: str, likely: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)

    others = set[str]()
    fits = _FITTING.get(plant)
    fitting = (seed for seed in count(1) if fits is None or fits(World(seed)))
    for seed in (likely, *islice(fitting, _ENOUGH)):  # `likely` is first only to save time
        problems = World(seed).run().problems
        if any(expected in problem for problem in problems):
            return
        others.update(problems)

    pytest.fail(
        f"no problem in {_ENOUGH} worlds contains {expected!r}; {len(others)} other problems: {sorted(others)[:3]}"
    )
