"""A second commit with the same number is refused, resent messages are stored once, and log gaps are tolerated."""

from __future__ import annotations

import pytest
from support.core import SUBJECTS, WORKFLOW, WorkflowDriver, task
from support.waiting import until

from pointsman.bus.memory.bus import MemoryBus
from pointsman.clock import SystemClock
from pointsman.core.model.state import from_snapshot, to_snapshot
from pointsman.engine.log.workflow_log import WorkflowLog
from pointsman.engine.supervisor.outbox_publisher import OutboxPublisher
from pointsman.errors import ConflictError
from pointsman.ports.bus import StoredMessage, StreamKind
from pointsman_schemas.log import Commit, RecordedContext
from pointsman_schemas.strict_json import dump

SUBJECT = SUBJECTS.log("team", WORKFLOW)


def log_on(bus: MemoryBus) -> WorkflowLog:
    return WorkflowLog(bus, SUBJECTS, SystemClock(), "team")


async def stored(bus: MemoryBus, *commits: Commit) -> None:
    for commit in commits:
        await bus.publish(SUBJECT, dump(commit), {})


async def test_second_commit_from_one_head_is_refused_and_stores_nothing() -> None:
    bus = MemoryBus()
    story = WorkflowDriver().planned(task("a"))
    await stored(bus, story.commits[0])
    one, other = log_on(bus), log_on(bus)
    head = await one.load(WORKFLOW)
    later = await other.load(WORKFLOW)
    entries = story.commits[1].entries
    story = WorkflowDriver().planned(task("b"))

    after = await one.commit(head, WORKFLOW, entries, story.state, "the first")
    with pytest.raises(ConflictError):
        await other.commit(later, WORKFLOW, story.commits[1].entries, story.state, "the second")
    whole = [each async for each in bus.read("log", SUBJECT)]

    assert [each.sequence for each in whole] == [1, after.sequence]


async def test_resent_outbox_is_stored_once() -> None:
    bus = MemoryBus()
    sender = OutboxPublisher(bus, SUBJECTS, SystemClock(), "team")
    state = WorkflowDriver().planned(task("a"), task("b")).state

    await sender.republish_all(state)
    await sender.republish_all(state)
    handed = [each.subject async for each in bus.read("handoffs", f"{SUBJECTS.namespace}.handoff.>")]

    assert handed == [SUBJECTS.handoff("worker", "team", WORKFLOW, name, 1) for name in ("a", "b")]


async def test_existing_messages_are_checked_in_parallel() -> None:
    class Far(MemoryBus):
        looks = 0

        async def last(self, kind: StreamKind, subject: str) -> StoredMessage | None:
            if kind == "handoffs":
                self.looks += 1
                await until(lambda: self.looks == 3)
            return await super().last(kind, subject)

    bus = Far()
    sender = OutboxPublisher(bus, SUBJECTS, SystemClock(), "team")
    state = WorkflowDriver().planned(task("a"), task("b"), task("c")).state

    await sender.republish_all(state)
    await sender.republish_all(state)

    assert bus.looks == 3


async def test_card_from_before_a_log_gap_does_not_count_after_it() -> None:
    bus = MemoryBus()
    log = log_on(bus)
    (story := WorkflowDriver().planned(task("a"))).complete_task("a")
    first, *_, last = story.commits
    named = RecordedContext(agents=({"name": "worker"},))
    await stored(bus, first.model_copy(update={"decision_context": named}))
    before = await log.load(WORKFLOW)
    whole = last.model_copy(update={"snapshot": to_snapshot(story.state), "decision_context": None})
    await stored(bus, whole)  # the messages between both commits have expired

    after = await log.load(WORKFLOW, before)

    assert before.agents == named.agents
    assert after.state == from_snapshot(whole.snapshot)
    assert after.agents is None  # unknown, so the next commit contains the agents again
