"""A supervisor double for tests of a worker: publish a handoff and read its result, on any bus."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from pointsman.clock import SystemClock
from pointsman.ports.bus import Bus
from pointsman.ports.clock import Clock
from pointsman_schemas.envelope import Envelope, encode
from pointsman_schemas.events import Handoff, Result
from pointsman_schemas.ids import attempt_token
from pointsman_schemas.strict_json import dump, parse
from pointsman_schemas.subjects import Subjects
from support.waiting import until

__all__ = ["TRACEPARENT", "SupervisorDouble"]

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class SupervisorDouble:
    """Publishes handoffs and reads results, as a supervisor does."""

    def __init__(self, bus: Bus, namespace: str = "pointsman", clock: Clock | None = None) -> None:
        self.bus = bus
        self.subjects = Subjects(namespace)
        self.clock: Clock = clock or SystemClock()

    def handoff(self, agent: str, input: Any = None, *, task: str = "T1", workflow: str = "wf_1", attempt: int = 1,
                **more: Any) -> Handoff:  # fmt: skip
        fields: dict[str, Any] = {
            "deadline": self.clock.now() + timedelta(seconds=60),
            "return_to": self.subjects.result(
                "team", agent, workflow, task, attempt, attempt_token("secret", task, attempt)
            ),
            **more,
        }
        return Handoff(
            workflow_id=workflow, task_id=task, attempt=attempt, from_agent="team", to_agent=agent, intent="do it",
            input=input, idempotency_key=f"{workflow}-{task}", **fields)  # fmt: skip

    async def publish_handoff(self, agent: str, input: Any = None, **more: Any) -> Handoff:
        """Publish a handoff and return it."""
        handoff = self.handoff(agent, input, **more)
        await self.publish(handoff)
        return handoff

    async def publish(self, handoff: Handoff, *, body: bytes | None = None, type: str = Handoff.event_type,
                      subject: str | None = None, headers: dict[str, str] | None = None) -> None:  # fmt: skip
        envelope = Envelope(
            id=f"handoff-{handoff.task_id}", type=type, source="test", time=datetime.now().astimezone(),
            subject=handoff.workflow_id, correlation_id="correlation-1", traceparent=TRACEPARENT)  # fmt: skip
        own = self.subjects.handoff(
            handoff.to_agent, handoff.from_agent, handoff.workflow_id, handoff.task_id, handoff.attempt
        )
        sent = encode(envelope) if headers is None else headers
        await self.bus.publish(subject or own, dump(handoff) if body is None else body, sent)

    async def find_result(self, handoff: Handoff) -> Result | None:
        stored = await self.bus.last("results", handoff.return_to)
        return parse(Result, stored.body) if stored else None

    async def result(self, handoff: Handoff, *, within: float = 10.0) -> Result:
        """Wait until the result of `handoff` is stored, and return the result."""
        found = await until(lambda: self.find_result(handoff), seconds=within)
        assert isinstance(found, Result)
        return found

    async def settled(self, agent: str) -> bool:
        depth = await self.bus.depth(f"agent-{agent}", "handoffs")
        return depth is not None and depth.pending == depth.in_flight == 0
