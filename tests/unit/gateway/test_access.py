"""Limits of open requests, running workflows, messages and schedules keep one caller from blocking others."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest
from support.asgi import event_stream, request
from support.memory_gateway import Door, end_turn, gateway
from support.waiting import until

from pointsman.client.client import Client
from pointsman.gateway.a2a.push_sender import PushSender
from pointsman.gateway.a2a.push_store import PUSH_GROUP, PushReceiver, PushStore, StoredReceiver, now
from pointsman.gateway.hook_config import Hook
from pointsman_schemas.subjects import ControlAddress


async def test_streams_of_one_caller_leave_room_for_others() -> None:
    async with gateway(gateway_caller_requests=2) as door, AsyncExitStack() as streams:
        made = await door.send("bob", "POST", "/v1/workflows", {"team": "absent", "input": "hi"})
        path = f"/v1/workflows/{made.json['id']}/events"
        bearer = f"Bearer {door.keys['bob']}"
        opened = [await streams.enter_async_context(event_stream(door.app, path, authorization=bearer)) for _ in "12"]
        await until(lambda: all(each.headers for each in opened))
        third = await door.send("bob", "GET", "/v1/teams")
        other = await door.send("ada", "GET", "/v1/teams")
        await streams.aclose()
        free = await door.send("bob", "GET", "/v1/teams")

    assert (third.status, third.json["code"], third.headers["retry-after"]) == (429, "too_many_open", "1")
    assert (other.status, free.status) == (200, 200)


async def test_unsigned_deliveries_take_no_place_of_callers() -> None:
    held = asyncio.Event()

    async def receive() -> dict[str, Any]:
        await held.wait()
        return {"type": "http.disconnect"}

    async with gateway(gateway_caller_requests=1, gateway_max_requests=2) as door:
        door.context.hooks = {"h": Hook("h", "crew", "github", "hook-h", ("secret",))}
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"x-hub-signature-256", b"sha256=0"), (b"x-github-delivery", b"1"), (b"host", b"127.0.0.1")]
        scope = {"type": "http", "method": "POST", "path": "/v1/hooks/h", "raw_path": b"", "query_string": b"",
                 "headers": headers, "root_path": "", "scheme": "http", "http_version": "1.1"}  # fmt: skip
        slow = asyncio.ensure_future(door.app(scope, receive, send))
        await asyncio.sleep(0)
        second = await request(door.app, "POST", "/v1/hooks/h", {}, **{"x-hub-signature-256": "1"})
        caller = await door.send("ada", "GET", "/v1/teams")
        held.set()
        await asyncio.gather(slow, return_exceptions=True)

    assert (second.status, second.json["code"]) == (429, "too_many_open")
    assert caller.status == 200


async def test_requests_at_the_same_time_do_not_exceed_the_running_workflows(monkeypatch: pytest.MonkeyPatch) -> None:
    submit = Client.submit

    async def submit_slowly(self: Client, *args: Any, **options: Any) -> Any:
        await asyncio.sleep(0.01)  # like a broker on another machine
        return await submit(self, *args, **options)

    monkeypatch.setattr(Client, "submit", submit_slowly)
    async with gateway() as door:
        body = {"team": "absent", "input": "hi"}
        answers = await asyncio.gather(*(door.send("ada", "POST", "/v1/workflows", body) for _ in range(5)))

    assert sorted(each.status for each in answers) == [202, 429, 429, 429, 429]


@pytest.mark.parametrize("path", ["/v1/workflows/{}/messages", "/v1/workflows/{}/resume", "/v1/schedules/crew/s/run"])
async def test_work_without_a_request_keeps_the_limits_and_teams_of_the_key(path: str) -> None:
    bodies = {"messages": {"text": "and then?"}, "resume": {}, "run": None}
    async with gateway() as door:
        workflow = await end_turn(door)
        door.context.index.callers.submitted("ada", "wf_running")
        at, body = path.format(workflow), bodies[path.rpartition("/")[2]]
        limited = await door.send("ada", "POST", at, body)
        elsewhere = await door.send("ada elsewhere", "POST", at, body)
        requests = [each async for each in door.client.bus.read("requests", door.client.subjects.requests)]

    assert (limited.status, limited.json["code"]) == (429, "too_many_running")
    assert (elsewhere.status, elsewhere.json["code"]) == (403, "team_not_allowed")
    assert len(requests) == 1


async def test_next_turn_by_a_message_counts_as_running_at_once() -> None:
    async with gateway() as door:
        workflow = await end_turn(door)
        told = await door.send("ada", "POST", f"/v1/workflows/{workflow}/messages", {"text": "and then?"})
        counted = door.context.index.callers.running("ada") or door.context.index.find(told.json["next_turn"])

    assert told.status == 202
    assert counted


async def test_batches_of_one_caller_leave_feeders_to_others_and_keep_their_bound() -> None:
    async with gateway() as door:
        body = {"team": "absent", "inputs": ["row"]}
        made = [(await door.send("bob", "POST", "/v1/batches", body)).status for _ in range(10)]
        answers = await asyncio.gather(*(door.send("bob", "POST", "/v1/batches", body) for _ in range(5)))
        feeding = asyncio.create_task(door.batches.run())
        await until(lambda: len(fed(door)) == 5)
        await door.send("ada", "POST", "/v1/batches", body)
        await until(lambda: "ada" in fed(door))
        callers = fed(door)
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)

    assert (set(made), {each.status for each in answers}) == ({202}, {429})
    assert sorted(callers) == ["ada", *["bob"] * 5]


async def test_bytes_of_one_caller_are_bounded_in_a_day() -> None:
    async with gateway(gateway_daily_bytes=2_000) as door:
        path, plain = "/v1/files?name=a.txt", {"content-type": "text/plain"}
        first = await door.send("bob", "POST", path, b"a" * 1_500, **plain)
        second = await door.send("bob", "POST", path, b"b" * 1_500, **plain)
        other = await door.send("ada", "POST", path, b"c" * 1_500, **plain)

    assert (first.status, other.status) == (201, 201)
    assert (second.status, second.json["code"]) == (429, "too_many_bytes")


async def test_endpoints_that_are_made_and_deleted_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pointsman.gateway.context._MAX_CHANGES", 2)
    async with gateway() as door:
        made = await door.send("bob", "POST", "/v1/webhooks", {"url": "https://example.org/"})
        changed = await door.send("bob", "POST", f"/v1/webhooks/{made.json['id']}/rotate", {})
        gone = await door.send("bob", "DELETE", f"/v1/webhooks/{made.json['id']}")
        again = await door.send("bob", "POST", "/v1/webhooks", {"url": "https://example.org/"})

    assert (made.status, changed.status, gone.status) == (201, 200, 204)
    assert (again.status, again.json["code"]) == (429, "too_many_changes")


async def test_kept_batches_of_one_caller_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pointsman.batches.service._MAX_KEPT", 1)
    async with gateway() as door:
        body = {"team": "absent", "inputs": ["row"]}
        first = await door.send("bob", "POST", "/v1/batches", body)
        second = await door.send("bob", "POST", "/v1/batches", body)

    assert (first.status, second.status, second.json["code"]) == (202, 429, "too_many_batches")


async def test_logs_of_a_cancelled_batch_name_the_user_who_cancelled() -> None:
    async with gateway() as door:
        made = await door.send("bob", "POST", "/v1/batches", {"team": "absent", "inputs": ["row"]})
        feeding = asyncio.create_task(door.batches.run())
        await until(lambda: door.batches.records() and door.batches.records()[0].sent)
        await door.batches.change(made.json["id"], "cancel", actor="grace")
        controls = f"{door.client.subjects.namespace}.control.>"
        await until(lambda: door.client.bus.last("controls", controls))
        control = await door.client.bus.last("controls", controls)
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)

    assert control is not None
    assert door.client.subjects.parse(control.subject, ControlAddress).actor == "grace"


async def test_receivers_of_one_caller_leave_deliveries_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    followed: list[str] = []

    async def follow(self: PushSender, stored: StoredReceiver) -> None:
        followed.append(stored.receiver.caller)
        await asyncio.Event().wait()  # the delivery never ends

    monkeypatch.setattr(PushSender, "_deliver", follow)
    async with gateway() as door:
        store = PushStore(await door.client.bus.key_value(door.client.subjects.gateway_bucket, PUSH_GROUP))
        for number, caller in enumerate([*["bob"] * 60, "ada"]):
            at = {"task": f"wf_{number}", "team": "crew", "origin": "http://g", "url": "https://r", "changed_at": now()}
            await store.put(PushReceiver(id="r", caller=caller, **at))
        sending = asyncio.create_task(PushSender(door.context, store).run())
        await until(lambda: "ada" in followed)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)

    assert followed.count("bob") == 50


def fed(door: Door) -> list[str]:
    """Return the callers of the batches that have a feeder."""
    return [record.caller for record in door.batches.records() if record.feeder]
