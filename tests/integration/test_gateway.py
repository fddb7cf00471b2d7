"""The REST API of the gateway with a real broker and real HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from support import factory
from support.crew import planner, steps, synthesizer, team, worker
from support.factory import RunningTeam
from support.gateway import events_of, http_client, read_events, served_gateway
from support.waiting import until

from pointsman.authoring.agent import Agent, agent
from pointsman.authoring.context import Context
from pointsman.settings import Settings
from pointsman_schemas.card import Role
from pointsman_schemas.plan import Plan
from pointsman_schemas.role_io import PlannerInput, Synthesis, SynthesizerInput
from pointsman_schemas.team import Limits, RetryPolicy, Team

pytestmark = pytest.mark.timeout(120)


@agent(name="synthesizer", description="Returns the result", role=Role.SYNTHESIZE)
async def single_result(asked: SynthesizerInput, context: Context) -> Synthesis:
    (report,) = context.results.values()
    return Synthesis(answer=str(report.output))


def text_planner(task: dict[str, str]) -> Agent:
    """Return a planner whose only task has the request as its input."""

    @agent(name="planner", description="Hands the request on", role=Role.PLAN)
    async def plan(asked: PlannerInput) -> Plan:
        return Plan.model_validate({"goal": "the test's", "tasks": [{**task, "input": asked.request}]})

    return plan


ASKING = Team(name="asking", approve_plan=True, limits=Limits(deadline=60), retry=RetryPolicy(attempts=1))


@pytest.fixture
async def crew(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RunningTeam]:
    monkeypatch.setenv("CREW_JOURNAL", str(tmp_path / "journal"))
    async with factory.team([team, ASKING], [planner, synthesizer, worker], on=settings) as running:
        yield running


async def begun(client: httpx2.AsyncClient, path: str) -> None:
    """Wait until a supervisor has admitted the request of a workflow."""

    async def admitted() -> bool:
        return bool((await client.get(path)).json()["status"] != "queued")

    await until(admitted, seconds=30)


async def open_questions(client: httpx2.AsyncClient, **query: str) -> list[dict[str, Any]]:
    """Wait until questions are listed. A workflow names a question before the question is stored."""

    async def listed() -> list[dict[str, Any]]:
        return list((await client.get("/v1/questions", params=query)).json()["questions"])

    found: list[dict[str, Any]] = await until(listed, seconds=30)
    return found


async def test_a_request_is_accepted_with_its_location_and_the_answer_is_read_there(client: httpx2.AsyncClient) -> None:
    created = await client.post("/v1/workflows", json={"team": "crew", "input": steps("a", "b"), "correlation_id": "c"})
    path = created.headers["location"]

    async def ended() -> bool:
        return (await client.get(path)).json()["ended_at"] is not None

    await until(ended, seconds=30)
    read = (await client.get(path)).json()

    assert (created.status_code, created.json()["status"], path) == (
        202, "queued", f"/v1/workflows/{created.json()['id']}",
    )  # fmt: skip
    assert (read["status"], read["outcome"]["answer"], read["correlation_id"], read["caller"]) == (
        "completed", "a b", "c", "local",
    )  # fmt: skip


async def test_a_preference_waits_for_the_end_and_is_bounded(client: httpx2.AsyncClient, tmp_path: Path) -> None:
    body = {"team": "crew", "input": steps("a")}
    waited = await client.post("/v1/workflows", json=body, headers={"prefer": "respond-async, wait=500"})
    late = {"team": "crew", "input": steps("a", after=str(tmp_path / "later"))}
    left = await client.post("/v1/workflows", json=late, headers={"prefer": "wait=1"})
    (tmp_path / "later").touch()

    assert (waited.status_code, waited.headers["preference-applied"]) == (200, "wait=60")
    assert waited.json()["outcome"]["answer"] == "a"
    assert (left.status_code, left.headers["preference-applied"]) == (202, "wait=1")
    assert left.json()["outcome"] is None


async def test_a_request_under_one_idempotency_key_is_one_workflow(client: httpx2.AsyncClient) -> None:
    body = {"team": "crew", "input": steps("a")}
    key = {"idempotency-key": "order-7"}
    first, again = [await client.post("/v1/workflows", json=body, headers=key) for _ in range(2)]
    await begun(client, first.headers["location"])  # before, the gateway cannot compare the requests
    other = await client.post("/v1/workflows", json={**body, "input": steps("b")}, headers=key)

    assert again.json()["id"] == first.json()["id"]
    assert again.headers["location"] == first.headers["location"]
    assert (other.status_code, other.json()["code"]) == (422, "contract"), other.text
    assert "the request id 'order-7' is taken" in other.json()["detail"]


async def test_events_of_a_workflow_are_resumed_from_any_event_without_a_gap(client: httpx2.AsyncClient) -> None:
    body = {"team": "crew", "input": steps("a", "b", serial=True)}
    workflow = (await client.post("/v1/workflows", json=body, headers={"prefer": "wait=30"})).json()["id"]

    every = await events_of(client, workflow)
    rests = [
        [each.id for each in await events_of(client, workflow, **{"last-event-id": event.id})] for event in every[:-1]
    ]
    after_the_end = await client.get(f"/v1/workflows/{workflow}/events", headers={"last-event-id": every[-1].id})

    ids = [event.id for event in every]
    assert len(set(ids)) == len(ids)
    assert rests == [ids[number + 1 :] for number in range(len(ids) - 1)]
    assert after_the_end.status_code == 204
    types = [event.type for event in every]
    assert (types[0], types[-1]) == ("workflow_started", "workflow_ended")
    assert types.count("task_succeeded") == 4
    assert every[-1].data["outcome"]["answer"] == "a b"


async def test_a_stream_sends_events_as_they_are_written_and_reports_of_agents_when_asked(
    client: httpx2.AsyncClient, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    created = await client.post("/v1/workflows", json={"team": "crew", "input": steps("a", after=str(go))})
    seen: list[str] = []
    async with client.stream("GET", f"/v1/workflows/{created.json()['id']}/events", params={"live": True}) as response:
        async for event in read_events(response):
            seen.append(event.type)
            if event.type == "task_dispatched" and event.data["task_id"] == "a":
                go.touch()

    assert response.headers["content-type"].startswith("text/event-stream")
    assert seen[-1] == "workflow_ended"


async def test_a_list_has_pages_and_filters(client: httpx2.AsyncClient) -> None:
    made = []
    for number in range(5):
        body = {"team": "crew", "input": steps("a"), "correlation_id": f"c{number}"}
        created = await client.post("/v1/workflows", json=body, headers={"prefer": "wait=30"})
        made.append(created.json()["id"])

    async def page(**query: str | int) -> httpx2.Response:
        return await client.get("/v1/workflows", params=query)

    async def listed() -> bool:
        shown = (await page()).json()["workflows"]
        return len(shown) == 5 and all(each["status"] == "completed" for each in shown)

    await until(listed, seconds=30)
    found: list[str] = []
    cursor: str | None = None
    while True:
        body = (await page(limit=2, **({"cursor": cursor} if cursor else {}))).json()
        found += [each["id"] for each in body["workflows"]]
        if (cursor := body["next_cursor"]) is None:
            break

    assert found == made[::-1]
    assert [each["id"] for each in (await page(correlation_id="c2")).json()["workflows"]] == [made[2]]
    assert (await page(status="failed")).json()["workflows"] == []
    assert (await page(team="asking")).json()["workflows"] == []
    assert (await page(nonsense="1")).status_code == 422


async def test_a_workflow_is_cancelled_once(client: httpx2.AsyncClient, tmp_path: Path) -> None:
    body = {"team": "crew", "input": steps("a", after=str(tmp_path / "never"))}
    path = (await client.post("/v1/workflows", json=body)).headers["location"]

    cancelled = await client.post(f"{path}/cancel", json={"reason": "a mistake"})

    async def ended() -> bool:
        return bool((await client.get(path)).json()["status"] == "cancelled")

    await until(ended, seconds=30)
    again = await client.post(f"{path}/cancel", json={})
    assert cancelled.status_code == 202
    assert (await client.get(path)).json()["outcome"]["reason"] == "cancelled by local: a mistake"
    assert (again.status_code, again.json()["code"]) == (409, "already_ended")


async def test_a_message_is_recorded_once_under_its_key_and_refused_after_the_end(
    client: httpx2.AsyncClient, tmp_path: Path
) -> None:
    body = {"team": "crew", "input": steps("a", after=str(tmp_path / "open"))}
    path = (await client.post("/v1/workflows", json=body)).headers["location"]
    await begun(client, path)  # before, a message has no number yet
    key = {"idempotency-key": "order 17"}
    told = [await client.post(f"{path}/messages", json={"text": "hurry"}, headers=key) for _ in range(2)]
    empty = await client.post(f"{path}/messages", json={"text": " "})
    (tmp_path / "open").touch()
    events = await events_of(client, path.rpartition("/")[2])
    late = await client.post(f"{path}/messages", json={"text": "hurry more"})

    assert [(each.status_code, each.json()["number"]) for each in told] == [(202, 1), (202, 1)]
    assert empty.status_code == 422
    assert [(each.data["text"], each.data["by"]) for each in events if each.type == "message_received"] == [
        ("hurry", "local")
    ]
    assert (late.status_code, late.json()["code"]) == (409, "message_refused")


async def test_a_failed_workflow_is_resumed_and_its_stream_continues(
    client: httpx2.AsyncClient, tmp_path: Path
) -> None:
    mended = tmp_path / "mended"
    body = {"team": "crew", "input": steps("a", "b", from_attempt=9, mended_by=str(mended))}
    failed = await client.post("/v1/workflows", json=body, headers={"prefer": "wait=30"})
    path = failed.headers["location"]
    first = await events_of(client, failed.json()["id"])
    mended.touch()
    resumed = await client.post(f"{path}/resume", json={"reason": "mended"})
    rest = await events_of(client, failed.json()["id"], **{"last-event-id": first[-1].id})
    again = await client.post(f"{path}/resume", json={})

    assert failed.json()["status"] in ("failed", "partial"), failed.text
    assert (resumed.status_code, rest[0].type, rest[0].data["round"]) == (202, "workflow_resumed", 2)
    assert rest[-1].data["outcome"]["answer"] == "a b"
    assert (again.status_code, again.json()["code"]) == (409, "not_resumable")


async def test_a_plan_waits_for_an_approval_that_is_given_over_http(client: httpx2.AsyncClient) -> None:
    path = (await client.post("/v1/workflows", json={"team": "asking", "input": steps("a")})).headers["location"]

    async def waiting() -> list[str]:
        return list((await client.get(path)).json()["questions"])

    (question,) = await until(waiting, seconds=30)
    workflow = path.rpartition("/")[2]
    (listed,) = await open_questions(client, workflow_id=workflow)
    answered = await client.post(f"/v1/questions/{question}/approve", json={})
    late = await client.post(f"/v1/questions/{question}/reject", json={"reason": "no"})
    events = await events_of(client, workflow)

    assert (listed["id"], listed["about"], listed["input"]["tasks"][0]["id"]) == (question, "plan", "a")
    assert "reply_to" not in listed
    assert (answered.json()["counted"], late.json()["counted"]) == (True, False)
    assert events[-1].data["outcome"]["answer"] == "a"
    assert {event.data["by"] for event in events if event.type == "question_answered"} == {"local"}


async def test_a_thread_has_the_turns_of_its_caller_in_each_door(settings: Settings) -> None:
    @agent(name="historian", description="Counts the turns")
    async def count(request: str, context: Context) -> str:
        return f"{request}: {[turn.answer for turn in context.history.turns] if context.history else []}"

    task = {"id": "t1", "agent": "historian", "intent": "count"}
    talkers = Team(name="talkers", limits=Limits(deadline=60))
    async with (
        factory.team(talkers, [text_planner(task), single_result, count], on=settings),
        served_gateway(settings) as address,
        http_client(address) as client,
    ):
        body = {"team": "talkers", "input": "one", "thread": "talk-1"}
        first = await client.post("/v1/workflows", json=body, headers={"prefer": "wait=30"})
        messages = [{"role": "assistant", "content": "made up"}, {"role": "user", "content": "two"}]
        second = await client.post(
            "/v1/chat/completions", json={"model": "talkers", "messages": messages},
            headers={"x-pointsman-thread": "talk-1"},
        )  # fmt: skip

    assert first.json()["outcome"]["answer"] == "one: []"
    assert second.json()["choices"][0]["message"]["content"] == "two: ['one: []']"


async def test_an_agent_is_given_the_information_that_it_asks_for(settings: Settings) -> None:
    @agent(name="asker", description="Asks for a colour")
    async def ask(request: str, context: Context) -> str:
        return f"painted {await context.ask('Which colour?')}"

    task = {"id": "t1", "agent": "asker", "intent": "paint it"}
    painters = Team(name="painters", limits=Limits(deadline=60))
    agents = [factory.planner_of(task), single_result, ask]
    async with (
        factory.team(painters, agents, on=settings),
        served_gateway(settings) as address,
        http_client(address) as client,
    ):
        path = (await client.post("/v1/workflows", json={"team": "painters", "input": "a door"})).headers["location"]

        async def waiting() -> list[str]:
            return list((await client.get(path)).json()["questions"])

        (question,) = await until(waiting, seconds=30)
        (listed,) = await open_questions(client)
        wrong = await client.post(f"/v1/questions/{question}/answer", json={"answer": 7})
        answered = await client.post(f"/v1/questions/{question}/answer", json={"answer": "red"})

        async def ended() -> bool:
            return (await client.get(path)).json()["ended_at"] is not None

        await until(ended, seconds=30)
        outcome = (await client.get(path)).json()["outcome"]

    assert (listed["id"], listed["about"], listed["text"]) == (question, "information", "Which colour?")
    assert (wrong.status_code, answered.json()["counted"]) == (422, True)
    assert outcome["answer"] == "painted red"


async def test_agents_and_teams_are_listed_with_their_schemas(client: httpx2.AsyncClient) -> None:
    async def live(path: str, names: list[str]) -> Any:
        """Return the list at a path if it has all names. On a busy machine, a card may expire and return."""
        found = (await client.get(f"/v1/{path}")).json()[path]
        return found if [each["name"] for each in found] == names else None

    async def crew() -> httpx2.Response | None:
        found = await client.get("/v1/teams/crew")
        return found if found.status_code == 200 else None

    agents = await until(lambda: live("agents", ["planner", "synthesizer", "worker"]), seconds=30)
    teams = await until(lambda: live("teams", ["asking", "crew"]), seconds=30)
    one = await until(crew, seconds=30)

    assert agents[2]["input_schema"]["properties"]["say"] == {"title": "Say"}
    assert [each["name"] for each in teams] == ["asking", "crew"]
    assert (one.json()["name"], one.json()["supervisors"]) == ("crew", 1)
    assert (await client.get("/v1/teams/unknown")).status_code == 404


async def test_errors_are_problems(client: httpx2.AsyncClient) -> None:
    cases = [
        (await client.get("/v1/nothing"), 404, "not_found"),
        (await client.get("/v1/workflows/wf_unknown"), 404, "not_found"),
        (await client.put("/v1/workflows", json={}), 405, "method_not_allowed"),
        (await client.post("/v1/workflows", json={"team": "crew"}), 422, "invalid_request"),
        (await client.post("/v1/workflows", json={"team": "crew", "input": "x", "inptu": 1}), 422, "invalid_request"),
        (await client.post("/v1/workflows", content="{", headers={"content-type": "application/json"}), 422,
         "invalid_request"),
        (await client.post("/v1/workflows", json={"team": "crew", "input": "x" * 1_100_000}), 413, "too_large"),
        (await client.post("/v1/workflows", json={"team": "crew", "input": "x", "metadata": {"pointsman.x": "y"}}),
         422, "reserved_metadata"),
    ]  # fmt: skip

    for response, status, code in cases:
        assert response.headers["content-type"] == "application/problem+json"
        assert (response.status_code, response.json()["status"], response.json()["code"]) == (status, status, code)
        assert response.json()["detail"]
    assert cases[2][0].headers["allow"] == "GET, POST"


@pytest.mark.parametrize(
    ("method", "path", "options", "detail"),
    [
        ("POST", "/v1/workflows", {"json": {"team": "crew", "input": ""}},
         "body.input: text that is not empty, or an object, is expected"),
        ("POST", "/v1/schedules", {"json": {"name": "a", "team": "crew", "input": [1], "cron": "0 9 * * *"}},
         "body.input: text that is not empty, or an object, is expected"),
        ("POST", "/v1/batches", {"json": {"team": "crew", "inputs": ["a", "", 5]}},
         "the body is not a batch: inputs.1: text that is not empty, or an object, is expected"),
        ("POST", "/v1/batches", {"json": {"team": "crew", "inputs": "mine"}},
         "the body is not a batch: inputs: a list of requests, or the id of an upload, is expected"),
        ("POST", "/v1/workflows/wf_1/cancel", {},
         "body: the body is empty; send a JSON object, such as {}, with the header Content-Type: application/json"),
        ("POST", "/v1/workflows", {"data": {"team": "crew"}},
         "body: the content type is application/x-www-form-urlencoded; send a JSON object with the header "
         "Content-Type: application/json"),
        ("POST", "/v1/workflows", {"json": [1]}, "body: a JSON object is expected"),
        ("POST", "/v1/workflows", {"content": "{bad", "headers": {"content-type": "application/json"}},
         "body: not JSON: Expecting property name enclosed in double quotes at character 1; send one JSON object"),
        ("POST", "/v1/workflows", {"json": {"team": "crew", "input": "x", "inptu": 1}},
         "body.inptu: there is no such field"),
        ("POST", "/v1/workflows", {"json": {"team": "crew", "input": "x", "files": ["file-1"]}},
         "body.files.0: the id of an upload is expected; POST /v1/files returns this id"),
        ("POST", "/v1/schedules", {"json": {"name": "a b", "team": "crew", "input": "x", "cron": "0 9 * * *"}},
         "body.name: a name is expected, of 1 to 64 letters, digits, - and _"),
        ("POST", "/v1/schedules", {"json": {"name": "a", "team": "crew", "input": "x", "cron": "daily"}},
         "cron is 'daily'; expected five fields"),
        ("POST", "/v1/schedules", {"json": {"name": "a", "team": "crew", "input": "x"}},
         "expected either a cron expression or a time"),
        ("GET", "/v1/workflows?cursor=x", {}, "query.cursor: the `next_cursor` of the previous page is expected"),
        ("GET", "/v1/workflows/wf_1/events", {"headers": {"last-event-id": "x"}},
         "header.last-event-id: the id of an event of this stream is expected, such as 12.0"),
    ],
)  # fmt: skip
async def test_invalid_requests_name_the_place_and_the_expected_value(
    client: httpx2.AsyncClient, method: str, path: str, options: dict[str, Any], detail: str
) -> None:
    problem = (await client.request(method, path, **options)).json()

    assert (problem["status"], "Value error" in problem["detail"]) == (422, False)
    assert detail in problem["detail"]
    assert [each["at"] for each in problem.get("errors", ()) if "str" in each["at"]] == []


async def test_the_gateway_reports_its_health_and_serves_its_page_without_anything_from_another_host(
    client: httpx2.AsyncClient,
) -> None:
    async def ready() -> bool:
        return (await client.get("/readyz")).status_code == 200

    await until(ready, seconds=30)
    page = await client.get("/docs")
    document = await client.get("/openapi.json")

    assert (await client.get("/healthz")).json() == {"status": "ok"}
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    assert "/v1/workflows/{workflow_id}/events" in page.text
    assert "<script" not in page.text
    assert "://" not in page.text.replace("http://127.0.0.1", "")
    assert document.json()["openapi"] == "3.1.0"


async def test_a_body_that_does_not_come_to_an_end_is_refused(
    crew: RunningTeam, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pointsman.gateway.access._BODY_TIMEOUT_S", 0.3)
    async with served_gateway(settings) as address, asyncio.timeout(30):
        host, _, port = address.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            b"POST /v1/workflows HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            b"content-length: 100\r\n\r\n{"
        )
        head, body = (await reader.read()).split(b"\r\n\r\n")
        writer.close()

    assert head.startswith(b"HTTP/1.1 408")
    assert b"application/problem+json" in head
    assert b"a piece took more than 0.3 s, or the whole body took more than " in body
    assert b"{" not in body[1:]
