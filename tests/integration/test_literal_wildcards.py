"""The broker stores a request on a subject with a literal wildcard, but no team reads it. `doctor` reports it."""

from __future__ import annotations

import nats
import pytest
from support.broker import remove_streams

from pointsman.bus.jetstream.bus import connect
from pointsman.cli.support.checks import check_requests
from pointsman.client.client import Client
from pointsman.settings import Settings

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("tail", ["*.shop", "*.*", "*.>"])
async def test_a_request_that_no_team_reads_is_named(settings: Settings, tail: str) -> None:
    subject = f"{settings.namespace}.request.{tail}"
    bus = await connect(settings, name="test", wait=10)
    await bus.set_up()
    client = Client(bus, namespace=settings.namespace)
    before = await check_requests(client)
    other = await nats.connect(settings.url)
    await other.jetstream().publish(subject, b'{"input": "x"}')
    await other.close()

    check = await check_requests(client)

    await bus.close()
    await remove_streams(settings)
    assert before.ok
    assert not check.ok
    assert check.finding == f"no team reads the requests on {subject}"
    assert f"{settings.namespace}.request.TEAM.CALLER" in check.advice
