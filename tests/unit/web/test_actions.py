"""Actions of a page: submit, cancel, replay and discard, and their refusals."""

from __future__ import annotations

import pytest
from support.asgi import event_stream, request
from support.dashboard import NASTY, letter, publish, watching
from support.factory import echo
from support.history import TEAM, WORKFLOW, completed, ended, started, store
from support.waiting import until

from pointsman.bus.memory.bus import MemoryBus
from pointsman.client.client import Client
from pointsman.engine.log.requests import workflow_of_request
from pointsman.web.users import User, Users, token_digest
from pointsman_schemas.events import Control, Request
from pointsman_schemas.ids import workflow_id_for


async def test_dead_letters_are_listed_shown_and_discarded() -> None:
    bus = MemoryBus()
    await publish(bus, f"pointsman.dead.{TEAM}.{WORKFLOW}.d1", letter("d1"))
    await publish(bus, f"pointsman.dead.{TEAM}.{WORKFLOW}.d2", letter("d2", NASTY))
    async with watching(bus) as dashboard, event_stream(dashboard.app, "/api/live/dead-letters") as page:
        before = await page.until("letters")
        shown = await request(dashboard.app, "GET", "/api/dead-letters/d1")
        gone = await request(dashboard.app, "POST", "/api/dead-letters/d1/discard", {})
        after = await page.until("letters")

    assert [one["id"] for one in before.data["letters"]] == ["d2", "d1"]
    assert shown.json["decoded"] == {}
    assert gone.json == {"discarded": True}
    assert [(one["id"], one["message"]) for one in after.data["letters"]] == [("d2", NASTY)]


async def test_records_of_discards_and_replays_name_the_user_of_the_dashboard() -> None:
    bus, users = MemoryBus(), Users([User("grace", "operate", token_digest("t0ken"))])
    await store(bus, *completed())
    for name in ("d1", "d2", "d3", "d4"):
        await publish(bus, f"pointsman.dead.{TEAM}.{WORKFLOW}.{name}", letter(name))
    await bus.registry.announce(echo(TEAM).card.model_copy(update={"instance": "i1"}))
    async with watching(bus, users) as dashboard:
        await until(lambda: len(dashboard.letters) == 4)
        done = [
            await request(dashboard.app, "POST", path, body, authorization="Bearer t0ken")
            for path, body in (
                ("/api/dead-letters/d1/discard", {}),
                ("/api/dead-letters/d2/replay", {"as_new": True}),
                ("/api/dead-letters/discard", {"until": 100}),
            )
        ]
    records = await Client(bus).operations.audit()

    assert [each.status for each in done] == [200, 200, 200]
    assert {each.actor for each in records} == {"grace"}
    assert sorted(each.content.action for each in records) == ["discard", "discard", "discard", "replay"]


async def test_replay_into_an_ended_workflow_is_refused_with_an_alternative() -> None:
    bus = MemoryBus()
    await store(bus, *completed())
    await publish(bus, f"pointsman.dead.{TEAM}.{WORKFLOW}.d1", letter("d1"))
    await bus.registry.announce(echo(TEAM).card.model_copy(update={"instance": "i1"}))  # the letter's origin
    async with watching(bus) as dashboard:
        refused = await request(dashboard.app, "POST", "/api/dead-letters/d1/replay", {})
        as_new = await request(dashboard.app, "POST", "/api/dead-letters/d1/replay", {"as_new": True})

    assert (refused.status, refused.json["kind"]) == (409, "not_replayable")
    assert (as_new.status, as_new.json["action"]) == (200, "request")
    assert await bus.last("requests", f"pointsman.request.{TEAM}.*") is not None


async def test_a_request_is_submitted_once_however_often_it_is_sent() -> None:
    bus = MemoryBus()
    asked = {"team": TEAM, "input": {"question": "why"}, "request_id": "r-7"}
    async with watching(bus) as dashboard:
        first = await request(dashboard.app, "POST", "/api/requests", asked)
        again = await request(dashboard.app, "POST", "/api/requests", asked)

    assert (
        first.json
        == again.json
        == {
            "id": workflow_id_for(f"pointsman.request.{TEAM}.anonymous", "r-7", "/pointsman/client/python"),
            "team": TEAM,
        }
    )
    stored = [message async for message in bus.read("requests", f"pointsman.request.{TEAM}.*")]
    # All requests have the same id, so the supervisor starts one workflow.
    assert {workflow_of_request(message) for message in stored} == {first.json["id"]}
    assert Request.model_validate_json(stored[0].body).input == {"question": "why"}


@pytest.mark.parametrize(
    "asked",
    [
        {}, {"team": "a team", "input": "x"}, {"team": TEAM, "input": ""}, {"team": TEAM, "input": 7}, [],
        {"team": TEAM, "input": "x", "deadlin": 3}, {"team": TEAM, "input": "x", "budget": {"tokns": 3}},
    ],
)  # fmt: skip
async def test_a_request_that_does_not_fit_reports_the_reason(asked: object) -> None:
    bus = MemoryBus()
    async with watching(bus) as dashboard:
        answer = await request(dashboard.app, "POST", "/api/requests", asked)

    assert answer.status == 422
    assert answer.json["error"]
    assert await bus.last("requests", "pointsman.request.*.*") is None


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/api/requests", {"team": TEAM, "input": "x", "deadlin": 3}, "has no 'deadlin'; did you mean deadline?"),
        ("/api/requests", {"team": TEAM, "input": "x", "budget": {"tokns": 3}}, "'tokns'; did you mean tokens?"),
        ("/api/workflows/wf_1/cancel", {"resaon": "x"}, "has no 'resaon'; did you mean reason?"),
        ("/api/questions/wf_1-1/approve", {"inptu": {}}, "has no 'inptu'; did you mean input?"),
        ("/api/dead-letters/d1/replay", {"as-new": True}, "has no 'as-new'; did you mean as_new?"),
        ("/api/dead-letters/d1/discard", {"x": True}, "has no 'x'; expected an empty object"),
        ("/api/dead-letters/replay", {"test": "", "until": 1}, "has no 'test'; did you mean text?"),
    ],
)
async def test_a_misspelled_field_is_refused(path: str, body: object, said: str) -> None:
    async with watching(MemoryBus()) as dashboard:
        answer = await request(dashboard.app, "POST", path, body)

    assert answer.status == 422
    assert said in answer.json["error"]


async def test_an_endless_body_is_not_read_completely() -> None:
    async with watching(MemoryBus(max_body=2_000)) as dashboard:
        answer = await request(dashboard.app, "POST", "/api/requests", {"team": TEAM, "input": "x" * 3_000})

    assert answer.status == 422
    assert "2000 bytes" in answer.json["error"]


async def test_cancel_asks_the_supervisor_and_says_when_it_is_too_late() -> None:
    bus = MemoryBus()
    await store(bus, started())
    async with watching(bus) as dashboard:
        asked = await request(dashboard.app, "POST", f"/api/workflows/{WORKFLOW}/cancel", {"reason": "enough"})
        await store(bus, ended("cancelled", 2), number=2)
        late = await request(dashboard.app, "POST", f"/api/workflows/{WORKFLOW}/cancel", {})
        unknown = await request(dashboard.app, "POST", "/api/workflows/wf_nowhere/cancel", {})

    stored = await bus.last("controls", f"pointsman.control.{TEAM}.{WORKFLOW}.cancel.dashboard.*")
    assert stored is not None
    assert Control.model_validate_json(stored.body) == Control(action="cancel", reason="enough")
    assert (asked.status, late.status, unknown.status) == (200, 409, 404)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/live/workflows/a.b", 422),
        ("/api/live/workflows/*", 422),
        ("/api/live/workflows/" + "x" * 300, 422),
        ("/api/dead-letters/>", 422),
        ("/api/dead-letters/none-such", 404),
        ("/api/events/log/0", 404),
        ("/api/events/handoffs/1", 404),
        ("/api/events/results/" + "9" * 40, 404),
    ],
)
async def test_an_address_that_names_nothing_is_an_answer_and_no_crash(path: str, status: int) -> None:
    async with watching(MemoryBus()) as dashboard:
        answer = await request(dashboard.app, "GET", path)

    assert answer.status == status
    assert answer.json["error"]
