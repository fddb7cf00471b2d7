"""A network that is silent, cut or slow loses no message, and memory stays bounded."""

from __future__ import annotations

import re

import pytest
from support.broker import remove_streams
from support.doctor import doctor
from support.proxy import Proxy
from support.waiting import until

from pointsman.bus.jetstream.bus import connect
from pointsman.errors import PublishOutcomeUnknownError
from pointsman.settings import Settings
from pointsman_schemas.subjects import Subjects

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def port(settings: Settings) -> int:
    return int(settings.url.rpartition(":")[2])


async def test_a_silent_broker_leaks_no_sockets(settings: Settings, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pointsman.bus.jetstream.connection._PING_INTERVAL_S", 0.2)
    async with Proxy("127.0.0.1", port) as proxy:
        bus = await connect(settings.model_copy(update={"url": proxy.url}), name="patient", wait=5)

        proxy.black_hole(upward=False)
        await until(lambda: proxy.accepted >= 4, seconds=25)
        left_open = proxy.open
        proxy.heal()
        await until(lambda: bus.connected, seconds=15)
        await bus.close()

    assert left_open <= 2


async def test_publish_without_an_answer_is_stored_with_an_unknown_outcome(settings: Settings, port: int) -> None:
    subject = Subjects(settings.namespace).log("crew", "wf_1")
    async with Proxy("127.0.0.1", port) as proxy:
        bus = await connect(settings.model_copy(update={"url": proxy.url, "request_timeout": 1.0}), name="x", wait=5)
        await bus.set_up()

        proxy.black_hole(upward=False)
        with pytest.raises(PublishOutcomeUnknownError):
            await bus.publish(subject, b"{}", {}, expect=0)
        proxy.heal()
        await bus.close()
    reader = await connect(settings, name="reader", wait=5)
    stored = await until(lambda: reader.last("log", subject))
    await reader.close()
    await remove_streams(settings)

    assert stored.body == b"{}"


async def test_a_broker_that_is_slow_to_answer_is_bad_to_doctor(settings: Settings, bus: object, port: int) -> None:
    async with Proxy("127.0.0.1", port) as proxy:
        through = settings.model_copy(update={"url": proxy.url})
        quick = await doctor(through)
        proxy.delay = 0.15  # in each direction
        slow = await doctor(through)

    assert "broker" not in quick
    assert re.search(r" answers in (\d{3} ms|\d+\.\d s); ", slow["broker"]["finding"])
    assert "disk" in slow["broker"]["advice"]
