"""A validator of the AG-UI protocol accepts each stream of the gateway, with a real broker and real HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from ag_ui_validate import PatchOk, ValidatorOptions, apply_patch, create_validator
from support import factory
from support.agui_teams import AGENTS, TEAMS, fail
from support.factory import planner_of, synthesizer
from support.gateway import http_client, served_gateway
from support.waiting import until

from pointsman.bus.jetstream.bus import JetStreamBus
from pointsman.settings import Settings

pytestmark = pytest.mark.timeout(120)


def run_input(text: str, *, thread: str = "t-1", run: str = "r-1", **more: Any) -> dict[str, Any]:
    messages = [{"id": "m-1", "role": "user", "content": text}]
    return {"threadId": thread, "runId": run, "messages": messages, "tools": [], "context": [], **more}


async def events_of(
    client: httpx2.AsyncClient, team: str, body: dict[str, Any], *, started: Callable[[], object] = lambda: None
) -> list[dict[str, Any]]:
    """Return all events of a run. Call `started` when the agent `a` has started."""
    events: list[dict[str, Any]] = []
    async with client.stream("POST", f"/v1/agui/{team}", json=body) as response:
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                events.append(json.loads(line.removeprefix("data: ")))
                if (events[-1]["type"], events[-1].get("name")) == ("SUBAGENT_STARTED", "a"):
                    started()
    return events


def check(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Check a stream by the rules of the protocol. Return the state after all patches."""
    validator = create_validator(ValidatorOptions())
    for event in events:
        validator.feed(event)
    validator.finalize()
    report = validator.report()
    assert [each for each in report.diagnostics if each.severity == "error"] == []
    state: Any = None
    for event in events:
        if event["type"] == "STATE_SNAPSHOT":
            state = event["snapshot"]
        elif event["type"] == "STATE_DELTA":
            patched = apply_patch(state, event["delta"])
            assert isinstance(patched, PatchOk), patched
            state = patched.result
    assert isinstance(state, dict)
    return state


@pytest.fixture
async def client(settings: Settings) -> AsyncIterator[httpx2.AsyncClient]:
    async with (
        factory.team(TEAMS, AGENTS, on=settings),
        served_gateway(settings) as address,
        http_client(address) as client,
    ):
        yield client


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]


async def test_a_run_shows_plan_agents_tools_and_texts_and_ends_with_the_answer(
    client: httpx2.AsyncClient, tmp_path: Path
) -> None:
    go = tmp_path / "go"  # a report that is sent before the stream is open does not arrive
    events = await events_of(client, "crew", run_input(f"after {go}"), started=go.touch)
    state = check(events)

    seen = kinds(events)
    assert (seen[0], seen[1], seen[-1]) == ("RUN_STARTED", "STATE_SNAPSHOT", "RUN_FINISHED")
    assert {event["name"] for event in events if event["type"] == "SUBAGENT_STARTED"} == {
        "planner", "a", "synthesizer",
    }  # fmt: skip
    assert [event["toolCallName"] for event in events if event["type"] == "TOOL_CALL_START"] == ["look"]
    answer = events[-1]["result"]
    last = [event for event in events if event["type"] == "TEXT_MESSAGE_CONTENT" and "subagentRunId" not in event]
    assert "".join(event["delta"] for event in last) == answer
    assert events[-1]["outcome"] == {"type": "success"}
    assert state["status"] == "completed"
    assert state["tasks"]["t"] == {"agent": "a", "intent": "say it", "status": "succeeded"}


async def test_a_repeated_run_is_the_same_workflow(client: httpx2.AsyncClient) -> None:
    first = await events_of(client, "crew", run_input("hello"))
    again = await events_of(client, "crew", run_input("hello"))
    # The thread and the run of each pair have the same text if they are joined by the separator.
    pairs = [
        await events_of(client, "crew", run_input("hello", thread=thread, run=run))
        for separator in ("", " ", ":", "/")
        for thread, run in (("t-2", f"r{separator}2"), (f"t-2{separator}r", "2"))
    ]

    runs = (first, again, *pairs)
    ids = [next(each["snapshot"]["workflow_id"] for each in run if "snapshot" in each) for run in runs]
    assert ids[0] == ids[1]
    assert len(set(ids)) == len(runs) - 1
    check(again)


async def test_a_question_interrupts_the_run_and_a_later_run_answers_it(
    client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor stores the question later than a reader of the questions waits for it."""
    monkeypatch.setattr("pointsman.client.operations._PUBLISH_TIMEOUT_S", 0.05)
    publish = JetStreamBus.publish

    async def publish_late(self: JetStreamBus, subject: str, *given: Any, **named: Any) -> int:
        if ".question." in subject:
            await asyncio.sleep(0.5)
        return await publish(self, subject, *given, **named)

    monkeypatch.setattr(JetStreamBus, "publish", publish_late)
    first = await events_of(client, "alone", run_input("ask me"))
    check(first)
    (interrupt,) = first[-1]["outcome"]["interrupts"]
    partly = await client.post("/v1/agui/alone", json=run_input("", run="r-2", resume=[
        {"interruptId": f"{interrupt['id']}x", "status": "resolved", "payload": "north"}]))  # fmt: skip
    answers = [{"interruptId": interrupt["id"], "status": "resolved", "payload": "south"}]
    second = await events_of(client, "alone", run_input("", run="r-3", resume=answers))
    repeated = await events_of(client, "alone", run_input("", run="r-3", resume=answers))
    state = check(second)

    assert (interrupt["reason"], interrupt["message"]) == ("question", "Which account?")
    assert partly.status_code == 409
    assert "south" in json.dumps(second[-1]["result"])
    assert second[1]["snapshot"]["tasks"]["t"]["agent"] == "a"
    assert state["tasks"]["t"]["status"] == "succeeded"
    assert kinds(repeated)[-1] == "RUN_FINISHED"


@pytest.mark.parametrize(
    ("answer", "runs"),
    [
        ({"status": "resolved", "payload": {"approved": True}}, True),
        ({"status": "resolved", "payload": {"approved": False, "reason": "too dear"}}, False),
        ({"status": "cancelled"}, False),
    ],
)
async def test_a_plan_is_approved_or_rejected(client: httpx2.AsyncClient, answer: dict[str, Any], runs: bool) -> None:
    first = await events_of(client, "strict", run_input("hello"))
    (interrupt,) = first[-1]["outcome"]["interrupts"]
    second = await events_of(
        client, "strict", run_input("", run="r-2", resume=[{"interruptId": interrupt["id"], **answer}])
    )
    state = check(second)

    assert interrupt["reason"] == "approval_of_plan"
    assert ("t-1" in {event.get("subagentRunId") for event in second}) is runs
    assert (state["status"] == "completed") is runs


async def test_a_failed_attempt_is_an_error_of_its_subagent(settings: Settings) -> None:
    planner = planner_of({"id": "t", "agent": "b", "intent": "fail"})
    async with (
        factory.team(TEAMS[0], [planner, fail, synthesizer], on=settings),
        served_gateway(settings) as address,
        http_client(address) as client,
    ):
        events = await events_of(client, "crew", run_input("hello"))
    state = check(events)

    assert [event["subagentRunId"] for event in events if event["type"] == "SUBAGENT_ERROR"] == ["t-1"]
    assert state["tasks"]["t"]["status"] in ("failed", "abandoned")


async def test_a_client_that_leaves_cancels_its_run(client: httpx2.AsyncClient) -> None:
    async with client.stream("POST", "/v1/agui/crew", json=run_input("wait", run="left")) as response:
        workflow = response.headers["x-workflow-id"]
        async for line in response.aiter_lines():
            if "said" in line:
                break

    async def cancelled() -> bool:
        return bool((await client.get(f"/v1/workflows/{workflow}")).json()["status"] == "cancelled")

    await until(cancelled, seconds=30)


@pytest.mark.parametrize(
    ("team", "body", "status"),
    [
        ("crew", {"threadId": "t", "runId": "r", "messages": []}, 400),
        ("crew", {"threadId": "t", "messages": []}, 422),
        ("crew", run_input("", resume=[{"interruptId": "wf_none-1", "status": "resolved"}]), 404),
        ("crew", run_input("", resume=[{"interruptId": "a-1", "status": "resolved"},
                                       {"interruptId": "b-1", "status": "resolved"}]), 422),
    ],
)  # fmt: skip
async def test_wrong_input_is_a_problem(
    client: httpx2.AsyncClient, team: str, body: dict[str, Any], status: int
) -> None:
    answer = await client.post(f"/v1/agui/{team}", json=body)

    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
