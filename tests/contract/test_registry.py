"""The registry lists the live agents of all connections."""

from __future__ import annotations

import asyncio

import pytest
from support.place import HEARTBEAT_S, BrokerNamespace, until

from pointsman.errors import InvalidTokenError, OversizeEventError
from pointsman.ports.bus import Bus
from pointsman_schemas.card import AgentCard


def card(name: str, instance: str) -> AgentCard:
    return AgentCard(name=name, instance=instance, description="writes")


async def test_cards_come_sorted_and_go_when_withdrawn(place: BrokerNamespace, bus: Bus) -> None:
    other = await place.connect()
    await bus.registry.announce(card("writer", "b"))

    assert [each.instance for each in await other.registry.cards()] == ["b"]  # the first answer must be complete
    for name, instance in (("writer", "a"), ("a-b", "x"), ("a", "x")):
        await bus.registry.announce(card(name, instance))
    await until(lambda: _has(other, [("a", "x"), ("a-b", "x"), ("writer", "a"), ("writer", "b")]))
    await bus.registry.withdraw(card("a", "x"))
    await until(lambda: _lacks(other, "a"))  # long before the card would expire


async def _has(bus: Bus, expected: list[tuple[str, str]]) -> bool:
    return [(each.name, each.instance) for each in await bus.registry.cards()] == expected


async def _lacks(bus: Bus, name: str) -> bool:
    return name not in [each.name for each in await bus.registry.cards()]


@pytest.mark.parametrize("heartbeat", [HEARTBEAT_S])
async def test_card_without_refresh_expires_after_three_heartbeats(place: BrokerNamespace, bus: Bus) -> None:
    other = await place.connect()
    loop = asyncio.get_running_loop()
    started = 0.0

    async def both_are_announced() -> bool:
        nonlocal started
        started = loop.time()
        await bus.registry.announce(card("writer", "dead"))
        await bus.registry.announce(card("writer", "alive"))
        return await _has(other, [("writer", "alive"), ("writer", "dead")])

    async def refreshed_until_the_other_is_gone(seen_by: Bus) -> bool:
        await bus.registry.announce(card("writer", "alive"))
        return await _has(seen_by, [("writer", "alive")])

    await until(both_are_announced)
    await until(lambda: refreshed_until_the_other_is_gone(other))

    assert 2.9 * HEARTBEAT_S < loop.time() - started < 3 * HEARTBEAT_S + 4.0
    newcomer = await place.connect()
    await until(lambda: refreshed_until_the_other_is_gone(newcomer))


async def test_a_card_needs_an_instance_that_can_stand_in_a_subject(bus: Bus) -> None:
    with pytest.raises(InvalidTokenError):
        await bus.registry.announce(card("writer", "a.b"))


async def test_a_card_that_is_too_large_is_refused(bus: Bus) -> None:
    large = AgentCard(name="writer", instance="a", description="x" * 70_000)

    with pytest.raises(OversizeEventError, match=r"the card of writer takes 70\d+ bytes; 65536 are accepted"):
        await bus.registry.announce(large)

    assert len(await bus.registry.cards()) == 0
    assert await bus.registry.refused() == {}
