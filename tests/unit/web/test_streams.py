"""What a page is told: all of it at first, what changed after that, and what it missed when it comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from starlette.requests import Request as HttpRequest
from support.asgi import ask, events
from support.history import TEAM, WORKFLOW, at, completed, dispatched, ended, failing, started, store, tool
from support.waiting import until

from pointsman.bus.memory import MemoryBus
from pointsman.client import Client
from pointsman.engine.announcing import team_card
from pointsman.errors import BusUnavailable
from pointsman.ports import Stored, StreamKind
from pointsman.web.dashboard import Dashboard
from pointsman.web.index import WorkflowIndex
from pointsman.web.rows import Search
from pointsman.web.streams import Streams
from pointsman_schemas.card import AgentCard
from pointsman_schemas.envelope import Envelope, encode
from pointsman_schemas.events import AttemptError, Control, DeadLetter, Event, Request, Result
from pointsman_schemas.ids import workflow_id_for
from pointsman_schemas.log import AttemptFailed, TimerArmed
from pointsman_schemas.strict_json import dump
from pointsman_schemas.team import Team

NASTY = "<img src=x onerror=alert(1)>\u2028</script>\n\ndata: forged\nid: 99"


@asynccontextmanager
async def watching(bus: MemoryBus) -> AsyncIterator[Dashboard]:
    dashboard = Dashboard(Client(bus))
    folding = asyncio.create_task(dashboard.fold())
    try:
        yield dashboard
    finally:
        folding.cancel()


async def publish(bus: MemoryBus, subject: str, event: Event) -> int:
    envelope = Envelope(id=subject, type=event.event_type, source="test", time=at(0))
    return await bus.publish(subject, dump(event), encode(envelope))


def letter(name: str, message: str = "no reason") -> DeadLetter:
    return DeadLetter(
        id=name, origin=TEAM, workflow_id=WORKFLOW, cause=AttemptError(kind="undecodable", message=message),
        attempts=1, subject=f"pointsman.inbox.{TEAM}.{WORKFLOW}.control.c", body="e30=", at=at(0),
    )  # fmt: skip


async def test_the_list_comes_whole_and_then_what_changes() -> None:
    bus = MemoryBus()
    await store(bus, *completed())
    async with watching(bus) as dashboard, events(dashboard.app, "/api/live/workflows") as page:
        while not (first := await page.until("page")).data["rows"]:
            pass
        await store(bus, started("wf_2", input="the second"), workflow="wf_2")
        second = await page.until("rows")

    (row,) = first.data["rows"]
    assert (row["id"], row["status"], row["done"], row["total"]) == (WORKFLOW, "completed", 2, 2)
    assert [(row["id"], row["status"], row["fits"]) for row in second.data["rows"]] == [("wf_2", "running", True)]
    assert second.data["totals"]["count"] == 2
    assert (first.id, second.id) == (1, 2)


async def test_a_page_that_comes_back_gets_what_it_missed_and_no_more() -> None:
    bus = MemoryBus()
    await store(bus, *completed())
    await store(bus, started("wf_2"), workflow="wf_2")
    await store(bus, started("wf_3"), workflow="wf_3")
    async with watching(bus) as dashboard:
        await until_read(dashboard, 3)
        async with events(dashboard.app, "/api/live/workflows", last_event_id="2") as page:
            missed = await page.next()

    assert (missed.name, missed.id) == ("rows", 3)
    assert [row["id"] for row in missed.data["rows"]] == ["wf_3"]


async def test_what_changes_while_a_page_is_sent_is_in_the_next_one() -> None:
    bus = MemoryBus()
    await store(bus, *completed())
    async with watching(bus) as dashboard:
        await until_read(dashboard, 1)
        streams = Streams(dashboard.client, dashboard.index, dashboard.letters)
        rows = streams.workflows(HttpRequest({"type": "http", "headers": [], "query_string": b""}))
        first = await anext(rows)
        await store(bus, started("wf_2"), workflow="wf_2")
        await until_read(dashboard, 2)
        second = await anext(rows)
        await rows.aclose()

    assert first.startswith(b"id: 1\nevent: page")
    assert second.startswith(b"id: 2\nevent: rows")


async def test_a_log_that_was_made_anew_while_the_broker_was_away_is_read_from_its_beginning() -> None:
    old, new = MemoryBus(), MemoryBus()
    for number in range(1, 4):
        await store(old, started(f"wf_{number}"), workflow=f"wf_{number}")
    await store(new, started("wf_9"), workflow="wf_9")

    class Restored(MemoryBus):
        """A bus whose log is another one after it was away."""

        here = old

        async def last(self, stream: StreamKind, subject: str) -> Stored | None:
            return await self.here.last(stream, subject)

        async def follow(
            self, stream: StreamKind, subjects: Sequence[str], *, after: int = 0
        ) -> AsyncGenerator[Stored, None]:
            async for stored in self.here.follow(stream, subjects, after=after):
                yield stored
                if self.here is old and stored.sequence == 3:
                    self.here = new
                    raise BusUnavailable("away")

    bus = Restored()
    index = WorkflowIndex(bus, Client(bus).subjects)
    folding = asyncio.create_task(index.run())

    async def anew() -> bool:
        return index.epoch == 1 and index.sequence == 1

    await until(anew)
    folding.cancel()

    assert [row.id for row in index.page(Search()).rows] == ["wf_9"]


async def test_what_was_seen_of_another_log_counts_for_nothing() -> None:
    bus = MemoryBus()
    await store(bus, *completed())
    async with watching(bus) as dashboard:
        await until_read(dashboard, 1)
        async with events(dashboard.app, "/api/live/workflows", last_event_id="900") as page:
            assert (await page.next()).name == "page"


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("", ["wf_3", "wf_2", WORKFLOW]),
        ("?status=running", ["wf_3", "wf_2"]),
        ("?team=other", ["wf_3"]),
        ("?text=PUMP", ["wf_2"]),
        ("?text=wf_3", ["wf_3"]),
        ("?minutes=5", []),
        ("?offset=2", [WORKFLOW]),
        ("?team=nobody", []),
    ],
)
async def test_filters_are_applied_where_the_rows_are(query: str, found: list[str]) -> None:
    bus = MemoryBus()
    await store(bus, *completed())
    await store(bus, started("wf_2", input="mend the pump"), workflow="wf_2")
    await store(bus, started("wf_3", team="other"), workflow="wf_3", team="other")
    async with watching(bus) as dashboard:
        await until_read(dashboard, 3)
        async with events(dashboard.app, f"/api/live/workflows{query}") as page:
            rows = (await page.next()).data["rows"]

    assert [row["id"] for row in rows] == found


async def test_a_row_that_no_longer_fits_says_so() -> None:
    bus = MemoryBus()
    await store(bus, started())
    async with watching(bus) as dashboard, events(dashboard.app, "/api/live/workflows?status=running") as page:
        while not (await page.until("page")).data["rows"]:
            pass
        await store(bus, ended("completed", 6), number=2)
        (row,) = (await page.until("rows")).data["rows"]

    assert (row["status"], row["fits"]) == ("completed", False)


async def test_a_request_that_no_supervisor_has_taken_is_in_the_list_with_the_reason_and_goes_when_it_is() -> None:
    bus = MemoryBus()
    client = Client(bus)
    first = await client.submit("shpo", "mend the pump")
    async with watching(bus) as dashboard, events(dashboard.app, "/api/live/workflows") as page:
        while not (waiting := (await page.next()).data.get("waiting")):
            pass
        await store(bus, started(first.id, team="shpo"), workflow=first.id, team="shpo")
        while (after := await page.until("rows")).data.get("waiting") != []:
            pass

    (row,) = waiting
    assert (row["id"], row["team"], row["input"], row["status"], row["reason"]) == (
        first.id, "shpo", "mend the pump", "waiting for admission", "team shpo has no supervisor",
    )  # fmt: skip
    assert (after.data["totals"]["waiting"], after.data["totals"]["count"]) == (0, 1)


@pytest.mark.parametrize(
    ("query", "fits"),
    [
        ("", True), ("?status=waiting+for+admission", True), ("?status=running", False), ("?team=shpo", True),
        ("?team=crew", False), ("?text=PUMP", True), ("?text=hose", False), ("?minutes=5", True),
    ],
)  # fmt: skip
async def test_what_waits_for_admission_is_found_like_the_others(query: str, fits: bool) -> None:
    bus = MemoryBus()
    await Client(bus).submit("shpo", "mend the pump")
    async with watching(bus) as dashboard, events(dashboard.app, "/api/live/workflows") as whole:
        while not (await whole.next()).data.get("waiting"):
            pass
        async with events(dashboard.app, f"/api/live/workflows{query}") as page:
            first = (await page.next()).data

    assert (len(first["waiting"]), first["totals"]["waiting"]) == ((1, 1) if fits else (0, 0))


async def test_what_waits_for_admission_is_cancelled_and_seen_to_be_at_once() -> None:
    bus = MemoryBus()
    waits = await Client(bus).submit("shpo", "mend the pump")
    async with watching(bus) as dashboard, events(dashboard.app, "/api/live/workflows") as page:
        while not (await page.next()).data.get("waiting"):
            pass
        answer = await ask(dashboard.app, "POST", f"/api/workflows/{waits.id}/cancel", {"reason": "a typo"})
        while [row["status"] for row in (await page.next()).data.get("waiting", ())] != ["asked to end"]:
            pass
        async with events(dashboard.app, f"/api/live/workflows/{waits.id}") as own:
            absent = await own.until("absent")

    assert (answer.status, absent.data["team"]) == (200, "shpo")


async def test_who_must_come_before_a_workflow_can_begin_stands_in_its_row() -> None:
    bus = MemoryBus()
    nobody = TimerArmed(at=at(0), name="wake-1", due=at(1), reason="no agent is alive that could take the request")
    await store(bus, started(), nobody)
    async with watching(bus) as dashboard, events(dashboard.app, "/api/live/workflows") as page:
        while not (rows := (await page.next()).data.get("rows")):
            pass
        await store(bus, TimerArmed(at=at(1), name="wake-2", due=at(9)), number=2)
        (begun,) = (await page.until("rows")).data["rows"]

    assert (rows[0]["status"], rows[0]["reason"], begun["reason"]) == ("running", nobody.reason, "")


async def test_a_workflow_is_told_line_by_line_with_how_it_stands() -> None:
    bus = MemoryBus()
    await store(bus, *failing())
    await publish(bus, f"pointsman.event.{WORKFLOW}.r1", tool("drill", 1, 2))
    async with watching(bus) as dashboard, events(dashboard.app, f"/api/live/workflows/{WORKFLOW}") as page:
        lines, view = await page.until("lines"), await page.until("view")

    said = [(line["sequence"], line["who"], line["what"], line["tone"]) for line in lines.data]
    assert (1, "fitter", "is handed t1", "busy") in said
    assert (1, "helper", "has t1 given up after 2: out of bolts", "bad") in said
    assert (2, "fitter", "used drill 1.0 s", "plain") in said
    assert lines.id == 2
    tasks = {task["task_id"]: task for task in view.data["tasks"]}
    assert (tasks["t1"]["status"], tasks["t1"]["attempt"], tasks["t2"]["status"]) == ("failed", 2, "skipped")
    assert tasks["t1"]["children"][0]["children"][0]["name"] == "execute_tool drill"
    assert view.data["needs"] == {"t1": ["plan-1"], "t2": ["t1"]}


async def test_a_workflow_page_that_comes_back_is_not_told_the_same_twice() -> None:
    bus = MemoryBus()
    await store(bus, *failing())
    async with watching(bus) as dashboard:
        async with events(dashboard.app, f"/api/live/workflows/{WORKFLOW}") as page:
            seen = (await page.until("lines")).id
        await store(bus, ended("partial", 9, gaps=()), number=2)
        async with events(dashboard.app, f"/api/live/workflows/{WORKFLOW}", last_event_id=str(seen)) as page:
            lines, view = await page.until("lines"), await page.until("view")

    assert [line["kind"] for line in lines.data] == ["workflow_ended"]
    assert view.data["outcome"]["answer"] == "mended"
    assert len(view.data["tasks"]) == 3


async def test_a_request_that_nobody_has_taken_yet_is_waited_for() -> None:
    bus = MemoryBus()
    async with watching(bus) as dashboard, events(dashboard.app, f"/api/live/workflows/{WORKFLOW}") as page:
        absent = await page.next()
        await store(bus, started(), dispatched("t1", "fitter", 1))
        view = await page.until("view")

    assert absent.name == "absent"
    assert view.data["status"] == "running"


async def test_a_log_of_another_release_says_so_and_nothing_more() -> None:
    bus = MemoryBus()
    headers = encode(Envelope(id="e", type="io.pointsman.log.v9", source="test", time=at(0)))
    await bus.publish(f"pointsman.log.{TEAM}.{WORKFLOW}", b"{}", headers)
    async with watching(bus) as dashboard, events(dashboard.app, f"/api/live/workflows/{WORKFLOW}") as page:
        assert "io.pointsman.log.v9" in (await page.until("broken")).data["error"]


async def test_what_a_model_wrote_stays_text_and_forges_no_event() -> None:
    bus = MemoryBus()
    await store(bus, started(input=NASTY), ended("completed", 6, answer=NASTY))
    async with watching(bus) as dashboard:
        await until_read(dashboard, 1)
        async with events(dashboard.app, f"/api/live/workflows/{WORKFLOW}") as page:
            view = await page.until("view")
        async with events(dashboard.app, "/api/live/workflows") as page:
            row = (await page.until("page")).data["rows"][0]
        whole = await ask(dashboard.app, "GET", "/api/events/1")

    assert view.data["input"] == view.data["outcome"]["answer"] == row["input"] == NASTY
    assert whole.headers["content-type"] == "application/json"
    assert whole.json["body"]["entries"][0]["input"] == NASTY


async def test_agents_have_their_queue_and_their_times_and_the_gone_are_kept() -> None:
    bus = MemoryBus()
    await bus.registry.announce(AgentCard(name="fitter", description="fits", instance="i1", version="2.1.0"))
    await bus.consumer("agent-fitter", "work", "pointsman.handoff.fitter.>", ack_wait=10)
    await bus.publish("pointsman.handoff.fitter.wf.t.1", b"{}", {})
    await store(bus, *completed())
    async with watching(bus) as dashboard:
        await until_read(dashboard, 1)
        async with events(dashboard.app, "/api/live/agents") as page:
            agents = {agent["name"]: agent for agent in (await page.until("agents")).data["agents"]}

    fitter = agents["fitter"]
    assert (fitter["waiting"], fitter["working"], fitter["instances"], fitter["versions"]) == (1, 0, 1, ["2.1.0"])
    assert (fitter["health"], agents["tester"]["health"]) == ("ready", "gone")
    assert (fitter["record"]["median"], fitter["record"]["wait"], fitter["record"]["succeeded"]) == (2.5, 0.5, 1)


async def test_teams_with_a_supervisor_come_before_those_that_had_one() -> None:
    bus = MemoryBus()
    await store(bus, *completed())
    await bus.registry.announce(team_card(Team(name="shop"), at(0), "s1"))
    async with watching(bus) as dashboard:
        await until_read(dashboard, 1)
        async with events(dashboard.app, "/api/live/agents") as page:
            live = (await page.until("agents")).data["live"]

    assert live["teams"] == ["shop", TEAM]


async def test_an_attempt_that_asks_a_person_is_no_failure_of_its_agent() -> None:
    error = AttemptError(kind="needs_approval", message="a person must allow the use of refund")
    asked = Result(
        status="failed", agent="fitter", task_id="t1", attempt=1, workflow_id=WORKFLOW, error=error,
        started_at=at(1), ended_at=at(2),
    )  # fmt: skip
    bus = MemoryBus()
    await store(
        bus, started(), AttemptFailed(at=at(2), event_id="e", task_id="t1", attempt=1, error=error, result=asked)
    )
    async with watching(bus) as dashboard:
        await until_read(dashboard, 1)
        async with events(dashboard.app, "/api/live/agents") as page:
            (fitter,) = (await page.until("agents")).data["agents"]

    assert (fitter["record"]["failed"], fitter["record"]["failing"]) == (0, 0)


async def test_dead_letters_are_listed_shown_and_discarded() -> None:
    bus = MemoryBus()
    await publish(bus, f"pointsman.dead.{TEAM}.{WORKFLOW}.d1", letter("d1"))
    await publish(bus, f"pointsman.dead.{TEAM}.{WORKFLOW}.d2", letter("d2", NASTY))
    async with watching(bus) as dashboard, events(dashboard.app, "/api/live/dead-letters") as page:
        before = await page.until("letters")
        shown = await ask(dashboard.app, "GET", "/api/dead-letters/d1")
        gone = await ask(dashboard.app, "POST", "/api/dead-letters/d1/discard", {})
        after = await page.until("letters")

    assert [one["id"] for one in before.data["letters"]] == ["d2", "d1"]
    assert shown.json["decoded"] == {}
    assert gone.json == {"discarded": True}
    assert [(one["id"], one["message"]) for one in after.data["letters"]] == [("d2", NASTY)]


async def test_a_replay_into_an_ended_workflow_is_refused_and_can_be_sent_anew() -> None:
    bus = MemoryBus()
    await store(bus, *completed())
    await publish(bus, f"pointsman.dead.{TEAM}.{WORKFLOW}.d1", letter("d1"))
    async with watching(bus) as dashboard:
        refused = await ask(dashboard.app, "POST", "/api/dead-letters/d1/replay", {})
        anew = await ask(dashboard.app, "POST", "/api/dead-letters/d1/replay", {"as_new": True})

    assert (refused.status, refused.json["kind"]) == (409, "not_replayable")
    assert (anew.status, anew.json["action"]) == (200, "request")
    assert await bus.last("work", f"pointsman.request.{TEAM}") is not None


async def test_a_request_is_submitted_once_however_often_it_is_sent() -> None:
    bus = MemoryBus()
    asked = {"team": TEAM, "input": {"question": "why"}, "request_id": "r-7"}
    async with watching(bus) as dashboard:
        first = await ask(dashboard.app, "POST", "/api/requests", asked)
        again = await ask(dashboard.app, "POST", "/api/requests", asked)

    assert (
        first.json
        == again.json
        == {"id": workflow_id_for(f"pointsman.request.{TEAM}", "r-7", "/pointsman/client/python"), "team": TEAM}
    )
    stored = [message async for message in bus.read("work", f"pointsman.request.{TEAM}")]
    assert len(stored) == 1
    assert Request.model_validate_json(stored[0].body).input == {"question": "why"}


@pytest.mark.parametrize(
    "asked", [{}, {"team": "a team", "input": "x"}, {"team": TEAM, "input": ""}, {"team": TEAM, "input": 7}, []]
)
async def test_a_request_that_does_not_fit_says_why(asked: object) -> None:
    bus = MemoryBus()
    async with watching(bus) as dashboard:
        answer = await ask(dashboard.app, "POST", "/api/requests", asked)

    assert answer.status == 422
    assert answer.json["error"]
    assert await bus.last("work", "pointsman.request.*") is None


async def test_a_body_without_end_is_not_read_to_its_end() -> None:
    async with watching(MemoryBus(max_body=2_000)) as dashboard:
        answer = await ask(dashboard.app, "POST", "/api/requests", {"team": TEAM, "input": "x" * 3_000})

    assert answer.status == 422
    assert "2000 bytes" in answer.json["error"]


async def test_cancel_asks_the_supervisor_and_says_when_it_is_too_late() -> None:
    bus = MemoryBus()
    await store(bus, started())
    async with watching(bus) as dashboard:
        asked = await ask(dashboard.app, "POST", f"/api/workflows/{WORKFLOW}/cancel", {"reason": "enough"})
        await store(bus, ended("cancelled", 2), number=2)
        late = await ask(dashboard.app, "POST", f"/api/workflows/{WORKFLOW}/cancel", {})
        unknown = await ask(dashboard.app, "POST", "/api/workflows/wf_nowhere/cancel", {})

    stored = await bus.last("work", f"pointsman.inbox.{TEAM}.{WORKFLOW}.control.*")
    assert stored is not None
    assert Control.model_validate_json(stored.body) == Control(action="cancel", reason="enough", by="the dashboard")
    assert (asked.status, late.status, unknown.status) == (200, 409, 404)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/live/workflows/a.b", 422),
        ("/api/live/workflows/*", 422),
        ("/api/live/workflows/" + "x" * 300, 422),
        ("/api/dead-letters/>", 422),
        ("/api/dead-letters/none-such", 404),
        ("/api/events/0", 404),
        ("/api/events/" + "9" * 40, 404),
    ],
)
async def test_an_address_that_names_nothing_is_an_answer_and_no_crash(path: str, status: int) -> None:
    async with watching(MemoryBus()) as dashboard:
        answer = await ask(dashboard.app, "GET", path)

    assert answer.status == status
    assert answer.json["error"]


@pytest.mark.parametrize("query", ["?offset=-1", "?offset=x", "?minutes=99999999999999", "?offset=" + "9" * 30])
async def test_an_odd_query_is_a_page_all_the_same(query: str) -> None:
    async with (
        watching(MemoryBus()) as dashboard,
        events(dashboard.app, f"/api/live/workflows{query}", last_event_id="x1") as page,
    ):
        assert (await page.next()).name == "page"


async def test_streams_end_when_the_dashboard_does() -> None:
    bus = MemoryBus()
    async with watching(bus) as dashboard, events(dashboard.app, "/api/live/agents") as page:
        await page.until("agents")
        dashboard.stop()


async def test_the_status_has_what_needs_a_look() -> None:
    bus = MemoryBus()
    await publish(bus, f"pointsman.dead.{TEAM}.{WORKFLOW}.d1", letter("d1"))
    async with watching(bus) as dashboard, events(dashboard.app, "/api/live/dead-letters") as page:
        live = (await page.until("letters")).data["live"]

    assert live == {
        "namespace": "pointsman", "broker": True, "read": 1.0, "letters": 1, "approvals": 0, "stuck": 0,
        "teams": [],
    }  # fmt: skip


async def until_read(dashboard: Dashboard, sequence: int) -> None:
    async def read() -> bool:
        return dashboard.index.sequence >= sequence

    await until(read)
