"""A service answers the requests of NATS tools in the format of NATS services."""

from __future__ import annotations

import json

import nats
import nats.errors
import pytest
from support.broker import TIMEOUT_S

from pointsman.bus.jetstream.bus import JetStreamBus
from pointsman.ports.bus import Service
from pointsman.settings import Settings


async def test_a_service_answers_the_micro_protocol_until_it_is_left(
    bus: JetStreamBus, settings: Settings, namespace: str
) -> None:
    service = Service(
        name=namespace, id="i1", version="1.2.0", description="writes", subject=f"{namespace}.handoff.writer.>",
        metadata={"role": "work"}, requests=4, errors=1, last_error="boom", processing_time=2.0,
        orphaned_handlers=lambda: 3,
    )  # fmt: skip
    client = await nats.connect(settings.url)

    async def ask(verb: str, scope: str) -> dict[str, object]:
        answer: dict[str, object] = json.loads(
            (await client.request(f"$SRV.{verb}{scope}", b"", timeout=TIMEOUT_S)).data
        )
        return answer

    async with await bus.serve(service):
        identity = {
            "name": namespace,
            "id": "i1",
            "version": "1.2.0",
            "metadata": {"role": "work", "jetstream_filter": service.subject},
        }
        for scope in (f".{namespace}", f".{namespace}.i1", ""):
            assert await ask("PING", scope) == {"type": "io.nats.micro.v1.ping_response", **identity}
        info = await ask("INFO", f".{namespace}")
        service.requests, service.processing_time = 5, 4.0
        stats = await ask("STATS", f".{namespace}.i1")

    assert info == {
        "type": "io.nats.micro.v1.info_response", **identity, "description": "writes",
        "endpoints": [],
    }  # fmt: skip
    assert str(stats.pop("started")).endswith("Z")
    assert stats == {
        "type": "io.nats.micro.v1.stats_response", **identity,
        "endpoints": [{"name": namespace, "num_requests": 5,
                       "num_errors": 1, "last_error": "boom", "processing_time": 4_000_000_000,
                       "average_processing_time": 800_000_000, "data": {"orphaned_handlers": 3}}],
    }  # fmt: skip
    # A round trip, after which the broker has processed the earlier messages of this connection.
    await bus.subjects("log", ">")
    with pytest.raises(nats.errors.NoRespondersError):
        await client.request(f"$SRV.PING.{namespace}", b"", timeout=TIMEOUT_S)
    await client.close()
