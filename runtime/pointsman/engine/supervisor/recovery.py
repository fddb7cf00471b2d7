"""What the log says is owed is sent again, for each workflow of a team that runs. What is there already stays as it is.

So the broker need not keep what can be had from the log. One that forgets handoffs is sent them again when a supervisor
starts, and whenever the broker itself was started anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial

from pointsman.engine.log.workflow_log import CorruptLogError, ImportedLogError, WorkflowLog
from pointsman.engine.process.retrying import retry_while_unavailable
from pointsman.engine.supervisor.outbox_publisher import OutboxPublisher
from pointsman.engine.supervisor.stream_integrity import running_workflows
from pointsman.ports.bus import Bus
from pointsman.ports.clock import Clock
from pointsman.telemetry import get_logger
from pointsman_schemas.subjects import Subjects

__all__ = ["Recovery"]

_MAX_CONCURRENT = 16
"""Workflows that are looked at together: enough to hide the round trips, few enough to leave room for the work."""

_log = get_logger(__name__)


class Recovery:
    """Mends what one team's workflows have lost."""

    def __init__(
        self, bus: Bus, subjects: Subjects, clock: Clock, logs: WorkflowLog, sender: OutboxPublisher, team: str
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
            if self._bus.handoffs_unsynced:
                await self.resend_running()
            await self._bus.restarted(seen)

    async def resend_running(self) -> None:
        """Send again what every running workflow owes, however long the broker takes to answer."""
        running = await retry_while_unavailable(
            lambda: running_workflows(self._bus, self._subjects, self._team), self._clock
        )
        left = iter(running)
        async with asyncio.TaskGroup() as lanes:
            for _ in range(min(_MAX_CONCURRENT, len(running))):
                lanes.create_task(self._resend_all(left))
        if running:
            _log.info("workflows_recovered", team=self._team, workflows=len(running))

    async def _resend_all(self, workflows: Iterator[str]) -> None:
        for workflow in workflows:
            try:
                await retry_while_unavailable(partial(self._resend, workflow), self._clock)
            except (CorruptLogError, ImportedLogError):
                continue  # it is closed when the next input for it comes; nothing acts on it
            except Exception:
                _log.exception("workflow_recovery_failed", workflow_id=workflow, hint="the next input for it does that")

    async def _resend(self, workflow: str) -> None:
        head = await self._logs.load(workflow)
        if head.state is None:
            return
        await self._sender.republish_all(head.state)
        # Who has committed meanwhile, and taken back what that abandons, may have done so before it was sent here.
        now = await self._logs.load(workflow, head)
        if now.state is not None and now.sequence > head.sequence:
            await self._sender.cancel_dispatched(now.state)
