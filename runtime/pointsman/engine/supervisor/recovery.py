"""Republish the outbox of every running workflow, at the start and after a restart of the broker.

This is necessary if the broker does not sync handoffs, because a restart may then lose handoffs. The supervisor
computes the outbox from the log, and so sends the lost handoffs again. Messages that the broker still has are not
replaced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial

from pointsman.engine.log.reader import ImportedLogError
from pointsman.engine.log.workflow_log import CorruptLogError, WorkflowLog
from pointsman.engine.process.retrying import retry_while_unavailable
from pointsman.engine.supervisor.outbox_publisher import OutboxPublisher
from pointsman.engine.supervisor.stream_integrity import running_workflows
from pointsman.ports.bus import Bus
from pointsman.ports.clock import Clock
from pointsman.telemetry import get_logger
from pointsman_schemas.subjects import Subjects

__all__ = ["Recovery"]

_MAX_CONCURRENT = 16
"""Number of workflows that are recovered at the same time. It is large enough to hide the round trips to the broker,
and small enough that new work is processed in between."""

_log = get_logger(__name__)


class Recovery:
    """Recovers the messages of one team's workflows that the broker lost."""

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
        """Republish at the start and after each restart of the broker, if it does not sync handoffs. Never returns."""
        while True:
            seen = self._bus.restarts
            if self._bus.handoffs_unsynced:
                await self.resend_running()
            await self._bus.restarted(seen)

    async def resend_running(self) -> None:
        """Republish the outbox of every running workflow, without a time limit."""
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
                continue  # the next input closes a corrupt log; no process acts on an imported log
            except Exception:
                _log.exception(
                    "workflow_recovery_failed", workflow_id=workflow, hint="its next input republishes its outbox"
                )

    async def _resend(self, workflow: str) -> None:
        head = await self._logs.load(workflow)
        if head.state is None:
            return
        await self._sender.republish_all(head.state)
        # Before this process sent a handoff, another supervisor may have abandoned the task and cancelled the handoff.
        now = await self._logs.load(workflow, head)
        if now.state is not None and now.sequence > head.sequence:
            await self._sender.cancel_dispatched(now.state)
