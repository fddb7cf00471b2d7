"""On the memory bus, the messages of one stream reveal losses of another stream."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from support.core import SUBJECTS, WORKFLOW, judged_stage

from pointsman.bus.memory.bus import MemoryBus
from pointsman.clock import SystemClock
from pointsman.engine.supervisor.stream_integrity import find_lost_work
from pointsman_schemas.strict_json import dump


async def test_missing_result_under_review_is_detected() -> None:
    bus, story = MemoryBus(), judged_stage()
    story.complete_task("write")
    await bus.publish(SUBJECTS.log("team", WORKFLOW), dump(story.commits[-1]), {})
    subject = SUBJECTS.attempt_results("team", "write", WORKFLOW, "write", 1)

    lost = await find_lost_work(bus, SUBJECTS, "team", SystemClock(), 30)
    await bus.publish(subject.replace("*", "token"), b"{}", {})
    no_handoff = await find_lost_work(bus, SUBJECTS, "team", SystemClock(), 30)
    handoff = SUBJECTS.handoff("write", "team", WORKFLOW, "write", 1)
    await bus.publish(handoff, b"{}", {})
    there = await find_lost_work(bus, SUBJECTS, "team", SystemClock(), 30)

    assert [subject in loss for loss in lost] == [True]
    assert [handoff in loss for loss in no_handoff] == [True]
    assert there == ()


class Tomorrow(SystemClock):
    def now(self) -> datetime:
        return super().now() + timedelta(days=1)


@pytest.mark.parametrize(("days", "missed"), [(30, True), (1, False)])
async def test_expired_result_is_not_missed(days: int, missed: bool) -> None:
    bus, story = MemoryBus(), judged_stage()
    story.complete_task("write")
    await bus.publish(SUBJECTS.log("team", WORKFLOW), dump(story.commits[-1]), {})

    lost = await find_lost_work(bus, SUBJECTS, "team", Tomorrow(), days)

    assert bool(lost) is missed
