"""A receiver can be stored again after its deletion, at any gateway."""

from __future__ import annotations

import pytest

pytest.importorskip("a2a")

from pointsman.bus.memory.bus import MemoryBus
from pointsman.gateway.a2a.push_store import PushReceiver, PushStore, now
from pointsman_schemas.subjects import Subjects

RECEIVER = PushReceiver(
    id="c1",
    task="wf_1",
    team="crew",
    caller="ada",
    origin="http://localhost",
    url="http://localhost/push",
    changed_at=now(),
)


async def test_a_gateway_that_has_not_read_a_deletion_stores_the_receiver_again() -> None:
    bus = MemoryBus()
    first, second = [PushStore(await bus.key_value(Subjects().gateway_bucket, "push")) for _ in range(2)]
    await first.put(RECEIVER)
    await first.delete(RECEIVER.key)

    await second.put(RECEIVER)

    assert await second.of_task("wf_1") == [RECEIVER]


async def test_a_receiver_is_stored_again_in_a_bucket_that_was_created_again() -> None:
    old, new = MemoryBus(), MemoryBus()
    before = await old.key_value(Subjects().gateway_bucket, "push")
    store = PushStore(before)
    for _ in range(3):
        await store.put(RECEIVER)
    store._bucket = await new.key_value(Subjects().gateway_bucket, "push")

    changed = RECEIVER.model_copy(update={"url": "http://localhost/other"})
    await store.put(changed)

    assert await store.of_task("wf_1") == [changed]
