"""Each workflow has one owner, and all supervisors agree on the owner."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from pointsman.bus.memory.bus import MemoryBroker
from pointsman.engine.process.heartbeat import team_card
from pointsman.engine.supervisor import ownership
from pointsman.engine.supervisor.ownership import Ownership, owner
from pointsman.ports.bus import Bus, StoredMessage
from pointsman.testing.clock import VirtualClock
from pointsman_schemas.team import Team

PERIOD = 5.0  # seconds
WORKFLOWS = [f"wf_{number}" for number in range(3000)]


def test_supervisors_name_the_same_holder_and_share_evenly() -> None:
    names = [f"s{number}" for number in range(3)]

    holders = {workflow: owner(workflow, names) for workflow in WORKFLOWS}
    turned = {workflow: owner(workflow, names[::-1]) for workflow in WORKFLOWS}
    shares = Counter(holders.values())

    assert holders == turned
    assert all(900 < shares[name] < 1100 for name in names)


def test_only_workflows_of_a_leaving_supervisor_move() -> None:
    moved = [workflow for workflow in WORKFLOWS if owner(workflow, ["a", "b", "c"]) != owner(workflow, ["a", "b"])]

    assert {owner(workflow, ["a", "b", "c"]) for workflow in moved} == {"c"}


async def test_supervisors_rank_by_age() -> None:
    _, (oldest, middle, newest) = await supervisors(3)

    assert [each.priority for each in (oldest, middle, newest)] == [0, 1, 2]
    assert not oldest.may_forward
    assert middle.may_forward


async def test_a_supervisor_that_is_not_announced_yet_comes_last() -> None:
    bus, _ = await supervisors(2)
    new = Ownership(bus, VirtualClock(), "crew", "new", PERIOD)
    await new.refresh()

    assert new.priority == 2


async def test_leader_spreads_workflows_between_two_cpu_thresholds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cpu, clock = [0.0], VirtualClock()
    monkeypatch.setattr(ownership, "process_time", lambda: cpu[0])
    _, (first, _) = await supervisors(2, clock)
    spread: list[bool] = []

    # The load of `first`, which is half of all work while two supervisors share.
    for share in (0.7, 0.9, 0.5, 0.3, 0.2, 0.7):
        cpu[0] += share * PERIOD
        await clock.advance(PERIOD)
        first.measure_load()
        spread.append(first.balanced)

    assert spread == [False, True, True, True, False, False]


async def test_a_single_supervisor_spreads_nothing_under_any_load(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, clock = [0.0], VirtualClock()
    monkeypatch.setattr(ownership, "process_time", lambda: cpu[0])
    _, (alone,) = await supervisors(1, clock)

    cpu[0] += PERIOD
    await clock.advance(PERIOD)
    alone.measure_load()

    assert not alone.balanced
    assert not alone.may_forward


async def test_the_others_spread_them_while_they_are_handed_something() -> None:
    clock = VirtualClock()
    _, (_, second) = await supervisors(2, clock)
    before = second.balanced
    second.record_forwarded()
    handed = second.balanced
    await clock.advance(2 * PERIOD)

    assert (before, handed, second.balanced) == (False, True, False)


@pytest.mark.parametrize(
    ("subject", "delivered", "to"),
    [
        ("pointsman.result.crew.a.wf_1.t1.1.token", 1, ["m"]),
        ("pointsman.result.crew.a.wf_1.t1.1.token", 2, []),
        ("pointsman.request.crew.anonymous", 1, []),  # a request stays, because the first supervisor has no free slot
    ],
)
async def test_followers_forward_first_deliveries_except_requests(subject: str, delivered: int, to: list[str]) -> None:
    _, (_, second) = await supervisors(2)
    delivery = Given(StoredMessage(subject, b"{}", {}, 1, VirtualClock().now()), delivered)

    assert await second.forward("wf_1", delivery) is bool(to)
    assert delivery.to == to


@dataclass
class Given:
    """A delivery that records where it is forwarded."""

    message: StoredMessage
    delivered: int
    to: list[str] = field(default_factory=list)

    async def forward(self, name: str) -> bool:
        self.to.append(name)
        return True

    async def ack(self) -> None: ...
    async def nak(self, delay: float = 0.0) -> None: ...
    async def term(self, reason: str) -> None: ...
    async def in_progress(self) -> None: ...


async def supervisors(count: int, clock: VirtualClock | None = None) -> tuple[Bus, list[Ownership]]:
    """Return a bus and the supervisors of a team on it, oldest first. Their names have no order."""
    bus, clock = MemoryBroker().connect(), clock or VirtualClock()
    names = ["m", "z", "a"][:count]
    for age, name in enumerate(names):
        await bus.registry.announce(team_card(Team(name="crew"), clock.now() + timedelta(seconds=age), name))
    all_of_them = [Ownership(bus, clock, "crew", name, PERIOD) for name in names]
    for each in all_of_them:
        await each.refresh()
    return bus, all_of_them
