"""If no request is queued, the search for queued requests reads no message, even after many requests."""

from __future__ import annotations

from collections.abc import AsyncIterator

from pointsman.bus.memory.bus import MemoryBus
from pointsman.engine.operations.queued_requests import list_queued_requests
from pointsman.engine.process.consumers import request_consumer
from pointsman.ports.bus import StoredMessage, StreamKind
from pointsman_schemas.subjects import Subjects

SUBJECTS = Subjects("pointsman")


class Counting(MemoryBus):
    """A bus that records the subjects of reads."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[str] = []

    async def read(self, stream: StreamKind, subject: str, *, after: int = 0) -> AsyncIterator[StoredMessage]:
        self.reads.append(subject)
        async for stored in super().read(stream, subject, after=after):
            yield stored


async def test_only_requests_of_teams_with_unsettled_requests_are_read() -> None:
    bus = Counting()
    for team in ("shop", "busy", "idle"):
        await bus.publish(SUBJECTS.request(team, "anonymous"), b'{"input": "hello"}', {})
    for team in ("busy", "idle"):
        consumer = await bus.consumer(*request_consumer(SUBJECTS, team), ack_wait=30)
        (delivery,) = await consumer.take(1)
        if team == "idle":
            await delivery.ack()

    found = await list_queued_requests(bus, SUBJECTS)

    assert [each.team for each in found] == ["busy", "shop"]
    assert bus.reads == [SUBJECTS.team_requests("busy"), SUBJECTS.team_requests("shop")]
