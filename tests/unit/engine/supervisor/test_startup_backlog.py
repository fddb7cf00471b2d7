"""A supervisor is not ready before it has processed the backlog of its consumers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

from pointsman.engine.process.consumers import DurableConsumer
from pointsman.engine.supervisor.startup_backlog import StartupBacklog
from pointsman.ports.bus import Bus, QueueDepth, StoredMessage
from pointsman.testing.clock import VirtualClock

NEWEST, ACK_WAIT, LOOK = 10, 2.0, 0.5
RESULTS = DurableConsumer("result-crew", "results", "ns.result.crew.>")


@dataclass
class Inbox:
    """The state at the broker: two of ten messages were in flight when the process died."""

    clock: VirtualClock = field(default_factory=VirtualClock)
    depth_now: QueueDepth = field(default_factory=lambda: QueueDepth(0, 2, 8))

    async def last(self, stream: str, subject: str) -> StoredMessage:
        return StoredMessage("inbox", b"", {}, NEWEST, self.clock.now())

    async def depth(self, name: str, stream: str) -> QueueDepth:
        return self.depth_now

    def backlog(self) -> StartupBacklog:
        return StartupBacklog(cast(Bus, self), self.clock, RESULTS, ACK_WAIT)

    async def looked_at(self, backlog: StartupBacklog, seconds: float, *in_hand: int) -> bool:
        """Poll for `seconds`. Return True if a backlog remains."""
        for _ in range(int(seconds / LOOK)):
            await self.clock.advance(LOOK)
            await backlog.refresh(
                StoredMessage("ns.result.crew.a", b"", {}, each, self.clock.now()) for each in in_hand
            )
        return bool(backlog)


async def test_the_backlog_counts_as_unprocessed_before_the_first_poll() -> None:
    inbox = Inbox()
    backlog = inbox.backlog()

    before = bool(backlog)
    inbox.depth_now = QueueDepth(0, 0, NEWEST)
    await backlog.measure()

    assert (before, bool(backlog)) == (True, False)


async def test_stuck_backlog_is_awaited_until_all_messages_are_redelivered() -> None:
    inbox = Inbox()
    backlog = inbox.backlog()
    await backlog.measure()

    soon = await inbox.looked_at(backlog, 2 * ACK_WAIT)
    later = await inbox.looked_at(backlog, LOOK)

    assert (soon, later) == (True, False)


async def test_moving_or_processed_backlog_is_awaited() -> None:
    inbox = Inbox()
    backlog = inbox.backlog()
    await backlog.measure()

    unmoved = await inbox.looked_at(backlog, 2 * ACK_WAIT)
    inbox.depth_now = QueueDepth(0, 1, 9)
    moved = await inbox.looked_at(backlog, 2 * ACK_WAIT)
    in_hand = await inbox.looked_at(backlog, 4 * ACK_WAIT, NEWEST)
    newer = await inbox.looked_at(backlog, 2 * ACK_WAIT + LOOK, NEWEST + 1)

    assert (unmoved, moved, in_hand, newer) == (True, True, True, False)


async def test_the_time_in_which_the_broker_is_away_does_not_count() -> None:
    inbox = Inbox()
    backlog = inbox.backlog()
    await backlog.measure()

    before = await inbox.looked_at(backlog, 2 * ACK_WAIT)
    await inbox.clock.advance(ACK_WAIT + LOOK)  # no poll is answered during this time
    after = await inbox.looked_at(backlog, 2 * ACK_WAIT)

    assert (before, after) == (True, True)


async def test_message_in_hand_of_another_consumer_does_not_count() -> None:
    inbox = Inbox()
    backlog = inbox.backlog()
    await backlog.measure()

    for _ in range(int(2 * ACK_WAIT / LOOK) + 1):
        await inbox.clock.advance(LOOK)
        await backlog.refresh([StoredMessage("ns.control.crew.w", b"", {}, NEWEST, inbox.clock.now())])

    assert not backlog
