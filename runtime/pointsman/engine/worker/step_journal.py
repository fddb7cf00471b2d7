"""Store the journal of one attempt on the bus. Each step has a subject, on which only the first publish succeeds."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from pointsman.engine.process.retrying import publish_once, retry_while_unavailable
from pointsman.engine.worker.executors import run_on_loop
from pointsman.errors import ContractError
from pointsman.ports.bus import Bus, StoredMessage
from pointsman.ports.clock import Clock
from pointsman_schemas.envelope import Envelope, decode, encode
from pointsman_schemas.events import Handoff, Step
from pointsman_schemas.ids import derive_id
from pointsman_schemas.strict_json import dump, parse
from pointsman_schemas.subjects import Subjects

__all__ = ["BusStepJournal"]


class BusStepJournal:
    """`StepJournal` of a handoff. Any loop may call the journal.

    The bus is used on the loop that ran when this object was created.

    Args:
        bus: Connection to the bus.
        subjects: Subjects of the namespace.
        handoff: Handoff of the attempt.
        source: CloudEvents source of the steps.
        correlation_id: Correlation id of the steps.
        causation_id: Id of the handoff's event.
        clock: Clock of the worker.
        fresh: True for the first delivery of the handoff. This attempt then has no steps yet, so the journal reads
            steps only if the handoff continues earlier attempts.
    """

    def __init__(
        self, bus: Bus, subjects: Subjects, handoff: Handoff, *, source: str, correlation_id: str | None,
        causation_id: str, clock: Clock, fresh: bool
    ) -> None:  # fmt: skip
        self._bus = bus
        self._subjects = subjects
        self._handoff = handoff
        self._source = source
        self._correlation_id = correlation_id
        self._causation_id = causation_id
        self._clock = clock
        self._is_first_attempt = fresh and not handoff.continued_attempts
        self._loop = asyncio.get_running_loop()

    async def load(self) -> Mapping[str, Step]:
        if self._is_first_attempt:
            return {}
        return await run_on_loop(self._loop, retry_while_unavailable(self._load, self._clock))

    async def append(self, step: Step) -> Step:
        return await run_on_loop(self._loop, self._append(step))

    async def _load(self) -> dict[str, Step]:
        handoff = self._handoff
        steps: dict[str, Step] = {}
        for attempt in (*handoff.continued_attempts, handoff.attempt):
            filter = self._subjects.attempt_steps(
                handoff.to_agent, handoff.from_agent, handoff.workflow_id, handoff.task_id, attempt
            )
            steps |= {
                step.name: step async for stored in self._bus.read("results", filter) if (step := _parse_step(stored))
            }
        return steps

    async def _append(self, step: Step) -> Step:
        agent, team = self._handoff.to_agent, self._handoff.from_agent
        subject = self._subjects.step(agent, team, step.workflow_id, step.task_id, step.attempt, step.name)
        body = dump(step)
        there = await publish_once(self._bus, self._clock, subject, body, self._headers(step))
        if there is None or there.body == body:
            return step
        self._is_first_attempt = False  # another worker also runs the attempt, so `load` must read
        return _parse_step(there)

    def _headers(self, step: Step) -> Mapping[str, str]:
        return encode(
            Envelope(
                id=derive_id("step", step.workflow_id, step.task_id, str(step.attempt), step.name),
                type=Step.event_type,
                source=self._source,
                time=step.at,
                subject=step.workflow_id,
                correlation_id=self._correlation_id,
                causation_id=self._causation_id,
            )
        )


def _parse_step(stored: StoredMessage) -> Step:
    try:
        return parse(Step, decode(stored.headers, stored.body)[1])
    except ContractError as error:
        raise ContractError(f"the step on {stored.subject} cannot be read: {error}") from None
