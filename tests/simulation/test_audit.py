"""The audit of a world reports a lost handoff, and accepts a handoff that its supervisor has withdrawn."""

from __future__ import annotations

import pytest

from simulation.audit import audit
from simulation.world import World

POWER = next(seed for seed in range(1, 100) if World(seed).broker.handoffs_unsynced)


async def lost(*, taken_back: bool) -> list[str]:
    """Return the audit of a world with one handoff that was settled but not answered."""
    world = World(POWER)
    subject = world.subjects.handoff("a", "team", "wf_1", "t1", 1)
    await world.broker.connect().publish(subject, b"{}", {})
    world.broker.sync_handoffs()
    if taken_back:
        world.broker.purge("handoffs", subject)
        assert not world.broker.all_messages("handoffs", subject)
        world.broker.power_cut()
    assert world.broker.all_messages("handoffs", subject)

    return [problem for problem in audit(world) if problem.endswith("was acknowledged and never answered")]


@pytest.mark.parametrize(("taken_back", "reported"), [(True, 0), (False, 1)], ids=["taken back", "not taken back"])
async def test_a_lost_handoff_is_reported_unless_it_was_taken_back(*, taken_back: bool, reported: int) -> None:
    assert len(await lost(taken_back=taken_back)) == reported


async def test_message_where_another_was_purged_is_not_excused() -> None:
    world = World(POWER)
    subject = world.subjects.handoff("a", "team", "wf_1", "t1", 1)
    bus = world.broker.connect()
    await bus.publish(subject, b"{}", {})
    world.broker.purge("handoffs", subject)
    await bus.publish(subject, b"{}", {})

    assert any(problem.endswith("was acknowledged and never answered") for problem in audit(world))


@pytest.mark.parametrize(
    ("over", "dealt_with", "reported"),
    [(True, False, 0), (True, True, 1), (False, False, 1)],
    ids=["over, and nobody's", "over, but acknowledged", "not over"],
)
async def test_trimmed_handoff_is_excused_if_its_workflow_ended_and_it_was_unacknowledged(
    *, over: bool, dealt_with: bool, reported: int
) -> None:
    world = World(POWER)
    bus, subject = world.broker.connect(), world.subjects.handoff("a", "team", "wf_1", "t1", 1)
    sequence = await bus.publish(subject, b"{}", {})
    if over:
        await bus.publish(world.subjects.outcome("team", "wf_1"), b"{}", {})
    if dealt_with:
        world.broker.open_durable("handoffs", "agent-a", "sim.handoff.a.>", 1.0, 1).settle(sequence)
    world.broker.trim("handoffs", "sim.handoff.>", sequence)

    assert (
        len([problem for problem in audit(world) if problem.endswith("was acknowledged and never answered")])
        == reported
    )


@pytest.mark.parametrize(
    ("removed", "body", "reported"),
    [(True, b"{}", 0), (True, b'{"a": 1}', 1), (False, b"{}", 1)],
    ids=["a copy of one that is gone", "another", "a copy of one that is there"],
)
async def test_second_outcome_is_excused_if_the_first_is_gone(*, removed: bool, body: bytes, reported: int) -> None:
    world = World(POWER)
    bus = world.broker.connect()
    await bus.publish("sim.request.team.anonymous", b'{"input": "hello"}', {"ce-id": "r0"})
    ((_, workflow),) = world.requests()
    subject = world.subjects.outcome("team", workflow)
    sequence = await bus.publish(subject, b"{}", {})
    if removed:
        world.broker.trim("log", subject, sequence)
    await bus.publish(subject, body, {})

    assert len([problem for problem in audit(world) if problem.endswith("has 2 outcomes")]) == reported


async def test_removed_outcome_of_an_outsider_is_not_counted() -> None:
    world = World(POWER)
    await world.broker.connect().publish("sim.request.team.anonymous", b'{"input": "hello"}', {"ce-id": "r0"})
    ((_, workflow),) = world.requests()
    subject = world.subjects.outcome("team", workflow)
    world.outsiders._inject(subject, b"{}", {})
    world.broker.trim("log", subject, world.broker.stream("log").end)
    await world.broker.connect().publish(subject, b'{"status": "completed"}', {})

    assert [problem for problem in audit(world) if problem.endswith("outcomes")] == []
