"""The SDK of CloudEvents sends events over HTTP to a gateway with a real broker."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest
from cloudevents.core.bindings.http import HTTPMessage, to_binary, to_structured
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from support.crew import steps
from support.factory import RunningTeam
from support.gateway import http_client, served_gateway
from support.waiting import until

from pointsman.gateway.keys import KeyStore
from pointsman.index.callers import CallerLimits
from pointsman.settings import Settings

pytestmark = pytest.mark.timeout(120)

PATH = "/v1/events/crew"
TIME = datetime(2026, 11, 30, tzinfo=UTC)
BATCH = {"content-type": "application/cloudevents-batch+json"}


def event(id: str = "e-1", *, data: Any = None, **attributes: Any) -> CloudEvent:
    given = {"id": id, "source": "/orders", "type": "com.example.order.v1", "time": TIME, **attributes}
    return CloudEvent(given, steps("a") if data is None else data)


def batch(*events: CloudEvent) -> bytes:
    """Return a batch. The SDK has no batched mode, so the batch is a list of the SDK's structured events."""
    return b"[" + b",".join(to_structured(each, JSONFormat()).body for each in events) + b"]"


async def deliver(client: httpx2.AsyncClient, message: HTTPMessage, path: str = PATH) -> httpx2.Response:
    return await client.post(path, content=message.body, headers=message.headers)


async def ended(client: httpx2.AsyncClient, path: str) -> dict[str, Any]:
    async def has_ended() -> bool:
        shown = await client.get(path)
        return shown.status_code == 200 and shown.json()["ended_at"] is not None

    await until(has_ended, seconds=30)
    read: dict[str, Any] = (await client.get(path)).json()
    return read


async def metadata_of(crew: RunningTeam, workflow: str) -> Any:
    stored = await crew.bus.last("requests", crew.subjects.request("crew", "local"))
    assert stored is not None
    return json.loads(stored.body)["metadata"]


@pytest.mark.parametrize("write", [to_binary, to_structured])
async def test_an_event_starts_a_workflow_and_its_repetition_does_not(client: httpx2.AsyncClient, write: Any) -> None:
    one = event(subject="ördnung 7", correlationid="order-7", datacontenttype="application/json")
    first, again = [await deliver(client, write(one, JSONFormat())) for _ in range(2)]
    other = await deliver(client, write(event("e-2"), JSONFormat()))
    read = await ended(client, first.headers["location"])
    repeated = await deliver(client, write(one, JSONFormat()))

    assert (first.status_code, first.content) == (202, b"")
    assert again.headers["location"] == repeated.headers["location"] == first.headers["location"]
    assert other.headers["location"] != first.headers["location"]
    assert (read["status"], read["outcome"]["answer"], read["correlation_id"]) == ("completed", "a", "order-7")


async def test_an_event_is_one_request_in_both_modes_and_agents_receive_its_attributes(
    client: httpx2.AsyncClient, crew: RunningTeam
) -> None:
    one = event(subject="ördnung 7", datacontenttype="application/json", priority=3, traceparent="00-1-2-01")
    other_hop = event(subject="ördnung 7", datacontenttype="application/json", priority=3, traceparent="00-1-3-01")
    structured = await deliver(client, to_structured(one, JSONFormat()))
    await ended(client, structured.headers["location"])
    binary = await deliver(client, to_binary(other_hop, JSONFormat()))

    assert (binary.status_code, binary.headers.get("location")) == (202, structured.headers["location"]), binary.text
    assert await metadata_of(crew, structured.headers["location"]) == {
        "cloudevent": {
            "id": "e-1",
            "source": "/orders",
            "type": "com.example.order.v1",
            "subject": "ördnung 7",
            "time": "2026-11-30T00:00:00Z",
            "datacontenttype": "application/json",
            "priority": "3",
        }
    }


async def test_another_event_under_the_same_id_and_source_is_refused(client: httpx2.AsyncClient) -> None:
    first = await deliver(client, to_structured(event(), JSONFormat()))
    await ended(client, first.headers["location"])
    other = await deliver(client, to_structured(event(data=steps("b")), JSONFormat()))

    assert (other.status_code, other.json()["code"]) == (422, "contract")


async def test_two_callers_may_send_events_of_the_same_id_and_source(crew: RunningTeam, settings: Settings) -> None:
    store = await KeyStore.open(crew.bus, crew.subjects)
    keys = [(await store.create(name)).text for name in ("ada", "bob")]
    async with served_gateway(settings, gateway_require_key=True) as address:
        places = []
        for key in keys:
            async with http_client(address, key) as client:
                places.append((await deliver(client, to_binary(event(), JSONFormat()))).headers["location"])

    assert len(set(places)) == 2


@pytest.mark.parametrize(
    ("content_type", "data", "input"),
    [
        ("application/json", b'{"tasks": []}', {"tasks": []}),
        ("application/vnd.order+json; charset=utf-8", b"[1, 2]", {"data": [1, 2]}),
        ("text/plain", "grüße".encode(), "grüße"),
        ("text/plain; charset=iso-8859-1", "grüße".encode("latin-1"), "grüße"),
        ("image/png", b"\x89PNG", {"data_base64": "iVBORw=="}),
        (None, b"", {}),
    ],
)
async def test_the_data_are_the_input(
    client: httpx2.AsyncClient, content_type: str | None, data: bytes, input: Any
) -> None:
    headers = {"ce-specversion": "1.0", "ce-id": "e", "ce-source": "/s", "ce-type": "t"}
    if content_type is not None:
        headers["content-type"] = content_type
    delivered = await client.post(PATH, content=data, headers=headers)
    shown = await ended(client, delivered.headers["location"])

    assert shown["input"] == input


@pytest.mark.parametrize("content_type", [None, "application/json"])
async def test_a_structured_event_of_dapr_needs_no_content_type(
    client: httpx2.AsyncClient, content_type: str | None
) -> None:
    envelope = {
        "specversion": "1.0", "id": "5929aaac-a5e2-4ca1-859c-edfe73f11565", "source": "checkout",
        "type": "com.dapr.event.sent", "topic": "orders", "pubsubname": "jetstream", "traceid": "00-1-2-01",
        "traceparent": "00-1-2-01", "tracestate": "", "datacontenttype": "application/json", "data": steps("a"),
    }  # fmt: skip
    headers = {} if content_type is None else {"content-type": content_type}
    delivered = await client.post(PATH, content=json.dumps(envelope).encode(), headers=headers)

    assert delivered.status_code == 202, delivered.text
    assert (await ended(client, delivered.headers["location"]))["outcome"]["answer"] == "a"


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("application/cloudevents+xml", b"<event/>"),
        ("application/cloudevents-batch+xml", b"<events/>"),
        ("application/cloudevents+json; charset=utf-16", b"{}"),
        ("application/x-www-form-urlencoded", b"a=b"),
        ("application/json", b'{"order": 7}'),
        ("application/json", b"[]"),
    ],
)
async def test_an_unknown_format_is_refused_with_415_and_the_known_ones(
    client: httpx2.AsyncClient, content_type: str, body: bytes
) -> None:
    refused = await client.post(PATH, content=body, headers={"content-type": content_type})

    assert (refused.status_code, refused.json()["code"]) == (415, "unknown_format"), refused.text
    assert "application/cloudevents+json" in refused.headers["accept"]


GOOD = {"specversion": "1.0", "id": "e", "source": "/s", "type": "t", "data": "do"}


@pytest.mark.parametrize(
    "body",
    [
        b"nonsense",
        b"[]",
        b'{"specversion": "1.0", "id": "a", "id": "b", "source": "/s", "type": "t"}',
        json.dumps({**GOOD, "specversion": "0.3"}).encode(),
        json.dumps({**GOOD, "id": ""}).encode(),
        json.dumps({name: GOOD[name] for name in GOOD if name != "source"}).encode(),
        json.dumps({**GOOD, "data_base64": "YQ=="}).encode(),
        json.dumps({**GOOD, "extension": {"an": "object"}}).encode(),
        json.dumps({**GOOD, "data": None, "data_base64": "not base64"}).encode(),
    ],
)
async def test_an_event_that_is_not_valid_is_refused(client: httpx2.AsyncClient, body: bytes) -> None:
    refused = await client.post(PATH, content=body, headers={"content-type": "application/cloudevents+json"})

    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_event"), refused.text


async def test_a_batch_is_answered_by_event(client: httpx2.AsyncClient) -> None:
    whole = await client.post(PATH, content=batch(event("a"), event("b"), event("a")), headers=BATCH)
    alone = await deliver(client, to_structured(event("c"), JSONFormat()))
    mixed = batch(event("c"), event("d"))[:-1] + b', {"id": "e", "source": "/orders"}]'
    partly = await client.post(PATH, content=mixed, headers=BATCH)
    empty = await client.post(PATH, content=b"[]", headers=BATCH)
    large = await client.post(PATH, content=batch(*[event(str(number)) for number in range(101)]), headers=BATCH)

    assert whole.status_code == 200, whole.text
    assert [each["id"] for each in whole.json()["events"]] == ["a", "b", "a"]
    a, b, again = [each["workflow_id"] for each in whole.json()["events"]]
    assert a == again != b
    assert (await ended(client, f"/v1/workflows/{b}"))["status"] == "completed"
    assert alone.status_code == 202
    assert (partly.status_code, partly.json()["code"]) == (422, "events_refused")
    assert [(each["index"], each["id"], each["status"]) for each in partly.json()["errors"]] == [(2, "e", 422)]
    assert (empty.status_code, empty.json()) == (200, {"events": []})
    assert (large.status_code, large.json()["code"]) == (422, "too_many_events")


async def test_the_limits_of_a_caller_count_each_event(crew: RunningTeam, settings: Settings, tmp_path: Path) -> None:
    store = await KeyStore.open(crew.bus, crew.subjects)
    fast = (await store.create("ada", limits=CallerLimits(requests_per_minute=3))).text
    busy = (await store.create("bob", limits=CallerLimits(running=1))).text
    other = (await store.create("eve", teams=["another"])).text
    go = tmp_path / "go"
    held = event("held", data=steps("a", after=str(go)))
    async with served_gateway(settings, gateway_require_key=True) as address:
        async with http_client(address, fast) as client:
            four = await client.post(PATH, content=batch(*map(event, "abcd")), headers=BATCH)
        async with http_client(address, busy) as client:
            first = await deliver(client, to_binary(held, JSONFormat()))
            second = await deliver(client, to_binary(event("second"), JSONFormat()))
            go.touch()
            await ended(client, first.headers["location"])
        async with http_client(address, other) as client:
            foreign = await deliver(client, to_binary(event(), JSONFormat()))
        async with http_client(address) as client:
            unknown = await deliver(client, to_binary(event(), JSONFormat()))

    assert (four.status_code, [each["id"] for each in four.json()["errors"]]) == (429, ["d"])
    assert int(four.headers["retry-after"]) >= 1
    assert (first.status_code, second.status_code, second.json()["code"]) == (202, 429, "too_many_running")
    assert int(second.headers["retry-after"]) >= 1
    assert (foreign.status_code, unknown.status_code) == (403, 401)


async def test_a_sender_asks_for_permission(crew: RunningTeam, settings: Settings) -> None:
    store = await KeyStore.open(crew.bus, crew.subjects)
    key = (await store.create("ada", teams=["crew"], limits=CallerLimits(requests_per_minute=120))).text
    origin = {"webhook-request-origin": "eventemitter.example.com", "webhook-request-rate": "500"}
    async with served_gateway(settings, gateway_require_key=True) as address, http_client(address, key) as client:
        allowed = await client.request("OPTIONS", PATH, headers=origin)
        plain = await client.request("OPTIONS", PATH)
        foreign = await client.request("OPTIONS", "/v1/events/another", headers=origin)
        strange = await client.request("OPTIONS", PATH, headers={"webhook-request-origin": "a b"})
        async with http_client(address) as stranger:
            unknown = await stranger.request("OPTIONS", PATH, headers=origin)

    assert (allowed.status_code, allowed.headers["allow"]) == (200, "OPTIONS, POST")
    assert allowed.headers["webhook-allowed-origin"] == "eventemitter.example.com"
    assert allowed.headers["webhook-allowed-rate"] == "120"
    assert (plain.status_code, "webhook-allowed-origin" in plain.headers) == (200, False)
    assert (foreign.status_code, strange.status_code, unknown.status_code) == (403, 422, 401)
