"""A key-value bucket stores small values with compare-and-set, and reports each change."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest
from support.place import TIMEOUT_S, BrokerNamespace

from pointsman.engine.log.reader import as_async_generator
from pointsman.errors import ConflictError, InvalidTokenError
from pointsman.ports.bus import Bus
from pointsman.ports.key_value import KeyValue
from pointsman_schemas.subjects import Subjects


async def bucket_of(bus: Bus, place: BrokerNamespace) -> KeyValue:
    return await bus.key_value(Subjects(place.ns).gateway_bucket)


async def test_values_are_read_by_each_connection_without_those_that_were_deleted(
    place: BrokerNamespace, bus: Bus
) -> None:
    bucket = await bucket_of(bus, place)
    await bucket.put("one", b"1")
    await bucket.put("one", b"uno")
    await bucket.put("two", b"2")
    await bucket.delete("two")

    found = await (await bucket_of(await place.connect(), place)).entries()

    assert {key: entry.value for key, entry in found.items()} == {"one": b"uno"}


async def test_a_group_has_keys_of_its_own(place: BrokerNamespace, bus: Bus) -> None:
    bucket = await bucket_of(bus, place)
    group = await bus.key_value(Subjects(place.ns).gateway_bucket, "batch")
    await bucket.put("one", b"1")
    revision = await group.put("one", b"uno")
    await group.put("two", b"due")
    await group.delete("two")

    found, deleted = await group.get("one"), await group.get("two")

    assert {key: entry.value for key, entry in (await bucket.entries()).items()} == {"one": b"1"}
    assert {key: entry.value for key, entry in (await group.entries()).items()} == {"one": b"uno"}
    assert found is not None
    assert (found.key, found.value, found.revision) == ("one", b"uno", revision)
    assert deleted is not None
    assert (deleted.value, await group.get("three")) == (None, None)
    with pytest.raises(ConflictError):
        await group.put("one", b"again", expect=0)


async def test_compare_and_set_stores_only_after_the_expected_change(place: BrokerNamespace, bus: Bus) -> None:
    bucket = await bucket_of(bus, place)
    first = await bucket.put("one", b"1", expect=0)

    with pytest.raises(ConflictError):
        await bucket.put("one", b"2", expect=0)
    await bucket.put("one", b"2", expect=first)

    assert (await bucket.entries())["one"].value == b"2"


async def test_a_follower_reads_the_newest_change_of_each_key_and_then_each_change(
    place: BrokerNamespace, bus: Bus
) -> None:
    bucket = await bucket_of(bus, place)
    await bucket.put("one", b"1")
    await bucket.put("one", b"uno")

    async with aclosing(as_async_generator(bucket.follow())) as changes, asyncio.timeout(TIMEOUT_S):
        first = await anext(changes)
        await bucket.delete("one")
        second = await anext(changes)
        await bucket.put("two", b"2")
        third = await anext(changes)

    assert [(each.key, each.value) for each in (first, second, third)] == [
        ("one", b"uno"),
        ("one", None),
        ("two", b"2"),
    ]
    assert first.revision < second.revision < third.revision


async def test_a_key_is_a_token(place: BrokerNamespace, bus: Bus) -> None:
    bucket = await bucket_of(bus, place)

    for call in (bucket.put("a.b", b"1"), bucket.delete("*")):
        with pytest.raises(InvalidTokenError):
            await call
