"""Every end of a workflow frees a slot, even if the supervisor missed the outcome."""

from __future__ import annotations

import asyncio

from pointsman.bus.memory.bus import MemoryBus
from pointsman.engine.supervisor.admission import AdmissionControl
from pointsman.ports.bus import StoredMessage, StreamKind
from pointsman.testing import VirtualClock
from pointsman_schemas.events import Outcome
from pointsman_schemas.subjects import Subjects


class Slow(MemoryBus):
    """A bus that counts its concurrent requests."""

    under_way = most = 0

    async def last(self, stream: StreamKind, subject: str) -> StoredMessage | None:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(0)
        self.under_way -= 1
        return await super().last(stream, subject)


async def test_missed_outcomes_are_found_in_few_calls() -> None:
    clock, subjects = VirtualClock(), Subjects()
    bus = Slow(clock=clock)
    room = AdmissionControl(bus, subjects, clock, "crew", 120)
    for number in range(120):
        room.admit(f"wf_{number}")
    for name in ("wf_7", "wf_119"):
        headers = {"ce-type": Outcome.event_type, "ce-subject": name}
        await bus.publish(subjects.outcome("crew", name), b"{}", headers)
    await bus.publish(subjects.outcome("crew", "wf_8"), b"{}", {})  # a workflow of another team

    await clock.advance(5)
    found = await room.missed_outcomes()
    again = await room.missed_outcomes()

    assert room.free_slots == 0
    assert [outcome.subject.rpartition(".")[2] for outcome in found] == ["wf_119", "wf_7"]
    assert list(again) == []
    assert bus.most == 50
