"""A commit is sent before any other message for its new state."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import UTC, datetime
from typing import Any, cast

from support.core import SUBJECTS, WorkflowDriver, task

from pointsman.clock import SystemClock
from pointsman.engine.log.workflow_log import LogHead, WorkflowLog
from pointsman.ports.bus import Bus


class Wire:
    """A connection that only publishes, at the end of the event loop's turn."""

    def __init__(self, happened: list[str]) -> None:
        self.happened = happened

    def publish(self, *_: object, **__: object) -> Coroutine[Any, Any, int]:
        asyncio.get_running_loop().call_soon(self.happened.append, "written")
        return self._stored()

    async def _stored(self) -> int:
        self.happened.append("waited for")
        return 1


async def test_commit_is_written_before_its_outbox_is_prepared() -> None:
    happened: list[str] = []
    story = WorkflowDriver(now=datetime.now(UTC)).planned(task("a"))
    log = WorkflowLog(cast(Bus, Wire(happened)), SUBJECTS, SystemClock(), "team")

    await log.commit(
        LogHead(), story.state.workflow_id, (), story.state, "cause", meanwhile=lambda _: happened.append("made ready")
    )

    assert happened == ["written", "made ready", "waited for"]
