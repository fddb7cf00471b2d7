"""What the log says is owed is sent again, for each workflow of a team that runs. What is there already stays as it is.

So the broker need not keep what can be had from the log. One that forgets handoffs is sent them again when a supervisor
starts, and whenever the broker itself was started anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial

from pointsman.engine.log.workflow_log import DamagedLog, ImportedLog, WorkflowLog
from pointsman.engine.process.retrying import insist
from pointsman.engine.supervisor.outbox_publisher import Sender
from pointsman.engine.supervisor.stream_integrity import running_workflows
from pointsman.ports.bus import Bus
from pointsman.ports.clock import Clock
from pointsman.telemetry import get_logger
from pointsman_schemas.subjects import Subjects

__all__ = ["Mender"]

_AT_ONCE = 16
"""Workflows that are looked at together: enough to hide the round trips, few enough to leave room for the work."""

_log = get_logger(__name__)


class Mender:
    """Mends what one team's workflows have lost."""

    def __init__(
        self, bus: Bus, subjects: Subjects, clock: Clock, logs: WorkflowLog, sender: Sender, team: str
    ) -> None:
        self._bus = bus
        self._subjects = subjects
        self._clock = clock
        self._logs = logs
        self._sender = sender
        self._team = team

    async def run(self) -> None:
        """Mend when this begins, and after each new start of a broker that forgets. Never returns."""
        while True:
            seen = self._bus.restarts
            if self._bus.forgets:
                await self.mend()
            await self._bus.restarted(seen)

    async def mend(self) -> None:
        """Send again what every running workflow owes, however long the broker takes to answer."""
        running = await insist(lambda: running_workflows(self._bus, self._subjects, self._team), self._clock)
        left = iter(running)
        async with asyncio.TaskGroup() as lanes:
            for _ in range(min(_AT_ONCE, len(running))):
                lanes.create_task(self._work_off(left))
        if running:
            _log.info("running_workflows_mended", team=self._team, workflows=len(running))

    async def _work_off(self, workflows: Iterator[str]) -> None:
        for workflow in workflows:
            try:
                await insist(partial(self._send, workflow), self._clock)
            except (DamagedLog, ImportedLog):
                continue  # it is closed when the next input for it comes; nothing acts on it
            except Exception:
                _log.exception("workflow_not_mended", workflow_id=workflow, hint="the next input for it does that")

    async def _send(self, workflow: str) -> None:
        head = await self._logs.load(workflow)
        if head.state is None:
            return
        await self._sender.send_all(head.state)
        # Who has committed meanwhile, and taken back what that abandons, may have done so before it was sent here.
        now = await self._logs.load(workflow, head)
        if now.state is not None and now.sequence > head.sequence:
            await self._sender.take_back(now.state)
