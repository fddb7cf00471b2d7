"""Only requests with the same source, id and content are duplicates. No other request is dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from support import factory
from support.factory import echo, planner_of, shaky, synthesizer
from support.waiting import until

from pointsman.client.client import Client, Workflow
from pointsman.engine.log.workflow_log import LogHead, WorkflowLog
from pointsman.engine.operations.dead_letter_entry import DeadLetterEntry
from pointsman.engine.operations.dead_letters import DeadLetters
from pointsman.errors import ContractError
from pointsman.ports.bus import StreamKind
from pointsman_schemas.envelope import Envelope, encode, encode_structured
from pointsman_schemas.events import Outcome, Request
from pointsman_schemas.team import Limits, RetryPolicy, Team

TEAM = Team(name="crew", limits=Limits(deadline=30), retry=RetryPolicy(backoff=0.05))
AGENTS = (planner_of({"id": "t1", "agent": "a", "intent": "do the thing"}), synthesizer, echo("a"))
ONE, OTHER = b'{"input": "order 1, amount 1"}', b'{"input": "order 1, amount 2"}'


def event(*, source: str = "/shop", type: str = Request.event_type) -> dict[str, str]:
    return encode(Envelope(id="order-1", type=type, source=source, time=datetime(2026, 1, 2, tzinfo=UTC)))


async def ask(client: Client, body: bytes, headers: Mapping[str, str]) -> Workflow:
    """Publish a request like another system. Return its workflow."""
    return await client.workflow_from_sequence(
        await client.bus.publish(client.subjects.request("crew", "anonymous"), body, headers)
    )


async def outcome_of(client: Client, body: bytes, headers: Mapping[str, str]) -> Outcome:
    return await (await ask(client, body, headers)).outcome(10)


async def all_settled(client: Client) -> Sequence[DeadLetterEntry]:
    """Wait until every request is settled. Return the dead letters."""

    async def settled() -> bool:
        depth = await client.bus.depth("request-crew", "requests")
        return depth is not None and depth.pending == depth.in_flight == 0

    await until(settled)
    return await DeadLetters(client.bus, client.subjects).list()


async def test_two_systems_that_use_one_id_are_two_workflows() -> None:
    async with factory.team(TEAM, AGENTS, settled=True) as client:
        first = await outcome_of(client, ONE, event(source="/shop"))
        second = await outcome_of(client, OTHER, event(source="/warehouse"))
        letters = await all_settled(client)

    assert first.workflow_id != second.workflow_id
    assert (first.status, second.status, letters) == ("completed", "completed", ())


@pytest.mark.parametrize("ended", [True, False], ids=["ended", "running"])
async def test_different_request_under_a_used_id_is_a_dead_letter(ended: bool) -> None:
    async with factory.team(TEAM, AGENTS, settled=True) as client:
        first = await ask(client, ONE, event())
        if ended:
            await first.outcome(10)
        await ask(client, OTHER, event())
        await ask(client, OTHER, event())
        outcome = await first.outcome(10)
        [letter] = await all_settled(client)
        replayed = await DeadLetters(client.bus, client.subjects).replay(letter)
        again = await factory.workflow_of(client, replayed.workflow).outcome(10)

    assert outcome.status == again.status == "completed"
    assert letter.content.cause.kind == "request_id_taken"
    assert first.id in letter.content.cause.message
    assert "under a new id" in letter.content.cause.message
    assert letter.body == OTHER
    assert again.workflow_id != first.id


async def test_the_same_request_again_is_the_same_workflow_and_no_dead_letter() -> None:
    async with factory.team(TEAM, AGENTS, settled=True) as client:
        first = await ask(client, ONE, event())
        second = await ask(client, ONE, event())
        await first.outcome(10)
        third = await ask(client, ONE, event())
        letters = await all_settled(client)
        workflows = await client.list()

    assert first.id == second.id == third.id
    assert [each.id for each in workflows] == [first.id]
    assert letters == ()


@pytest.mark.parametrize("body", [ONE, OTHER], ids=["the same", "another"])
async def test_request_with_the_id_of_an_ended_workflow_costs_no_commit(
    body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []
    commit = WorkflowLog.commit

    async def counted(log: WorkflowLog, head: LogHead, workflow: str, *rest: Any) -> LogHead:
        tried.append(workflow)
        return await commit(log, head, workflow, *rest)

    monkeypatch.setattr(WorkflowLog, "commit", counted)
    async with factory.team(TEAM, AGENTS, settled=True) as client:
        await outcome_of(client, ONE, event())
        await all_settled(client)
        before = len(tried)
        await ask(client, body, event())
        await all_settled(client)

    assert before > 0
    assert len(tried) == before


async def test_a_refused_request_is_corrected_under_a_new_id_and_reports_it() -> None:
    async with factory.team(TEAM, AGENTS, settled=True) as client:
        refused = await outcome_of(client, ONE, event(type="my.req"))
        await ask(client, ONE, event())
        letters = await all_settled(client)

    assert refused.status == "failed"
    assert "under a new id" in str(refused.answer)
    assert [letter.content.cause.kind for letter in letters] == ["unknown_type", "request_id_taken"]


async def test_invalid_event_sent_twice_is_one_dead_letter() -> None:
    async with factory.team(TEAM, AGENTS, settled=True) as client:
        refused = await outcome_of(client, b"not json", event())
        await ask(client, b"not json", event())
        letters = await all_settled(client)

    assert refused.status == "failed"
    assert [letter.content.cause.kind for letter in letters] == ["undecodable"]


async def test_client_refuses_a_different_request_under_a_used_id() -> None:
    async with factory.team(TEAM, AGENTS, settled=True) as client:
        first = await client.submit("crew", "amount 1", request_id="r1")
        await first.outcome(10)
        again = await client.submit("crew", "amount 1", request_id="r1")
        with pytest.raises(ContractError, match=rf"'r1' is taken: .* started {first.id}; nothing was sent"):
            await client.submit("crew", "amount 2", request_id="r1")
        letters = await all_settled(client)

    assert again.id == first.id
    assert letters == ()


async def test_equal_ids_of_two_clients_are_two_messages() -> None:
    async with factory.team(TEAM, AGENTS, settled=True) as client:
        publishing = [client.submit("crew", text, request_id="r1") for text in ("amount 1", "amount 2")]
        first, second = await asyncio.gather(*publishing)
        await first.outcome(10)
        letters = await all_settled(client)

    assert first.id == second.id
    assert [letter.content.cause.kind for letter in letters] == ["request_id_taken"]


async def forget(client: Client, workflow: Workflow, *streams: StreamKind) -> None:
    """Delete all messages of the workflow from the streams, as after expiry or a purge."""
    for stream in streams:
        for subject in await client.bus.subjects(stream, ">"):
            if workflow.id in subject:
                await client.bus.trim(stream, subject, 2**53)


@pytest.mark.parametrize("streams", [("log", "results", "work"), ("log",)], ids=["all of it", "the log alone"])
async def test_repeated_request_with_a_deleted_log_is_answered_again(streams: Sequence[StreamKind]) -> None:
    tried_twice = planner_of({"id": "t1", "agent": "shaky", "intent": "do the thing"})
    async with factory.team(TEAM, (tried_twice, synthesizer, shaky), settled=True) as client:
        first = await ask(client, ONE, event())
        await first.outcome(10)
        await all_settled(client)
        await forget(client, first, *streams)
        second = await ask(client, ONE, event())
        outcome = await second.outcome(5)

    assert second.id == first.id
    assert outcome.status == "completed"


async def test_repeated_invalid_event_with_a_deleted_log_is_answered_again() -> None:
    async with factory.team(TEAM, AGENTS, settled=True) as client:
        first = await ask(client, b"not json", event())
        await first.outcome(10)
        await all_settled(client)
        await forget(client, first, "log")
        outcome = await (await ask(client, b"not json", event())).outcome(5)

    assert outcome.status == "failed"


def with_id(form: str, value: str) -> tuple[dict[str, str], bytes]:
    """Return headers and body of the same request with an id, in one of the formats for ids."""
    match form:
        case "Nats-Msg-Id":
            return {"Nats-Msg-Id": value}, ONE
        case "ce-id":
            return {**event(), "ce-id": value}, ONE
        case "ce-source":
            return {**event(), "ce-source": value}, ONE
        case _:
            envelope = Envelope(
                id=value, type=Request.event_type, source="/shop", time=datetime(2026, 1, 2, tzinfo=UTC)
            )
            return encode_structured(envelope, {"input": "order 1, amount 1"})


@pytest.mark.parametrize("form", ["Nats-Msg-Id", "ce-id", "structured"])
async def test_ids_that_differ_after_256_characters_are_refused_one_by_one(form: str) -> None:
    ids = ["x" * 259 + end for end in "abc"]

    async with factory.team(TEAM, AGENTS, settled=True) as client:
        asked = [with_id(form, each) for each in ids]
        workflows = [await ask(client, body, headers) for headers, body in asked]
        outcomes = [await each.outcome(10) for each in workflows]
        letters = await all_settled(client)

    assert len({each.id for each in workflows}) == 3
    assert [each.status for each in outcomes] == ["failed"] * 3
    assert len(letters) == 3
    assert all("260 characters" in letter.content.cause.message for letter in letters)
    assert {letter.content.workflow_id for letter in letters} == {each.id for each in workflows}


@pytest.mark.parametrize("form", ["Nats-Msg-Id", "ce-id", "ce-source", "structured"])
async def test_an_id_of_256_characters_and_a_source_of_any_length_count_whole(form: str) -> None:
    length = 3_000 if form == "ce-source" else 256
    ids = ["x" * (length - 1) + end for end in "ab"]

    async with factory.team(TEAM, AGENTS, settled=True) as client:
        asked = [with_id(form, each) for each in ids]
        outcomes = [await outcome_of(client, body, headers) for headers, body in asked]
        letters = await all_settled(client)

    assert [each.status for each in outcomes] == ["completed"] * 2
    assert len({each.workflow_id for each in outcomes}) == 2
    assert letters == ()


async def test_a_correlation_id_that_is_too_long_is_refused_and_not_cut() -> None:
    async with factory.team(TEAM, AGENTS, settled=True) as client:
        outcome = await outcome_of(client, ONE, {**event(), "ce-correlationid": "c" * 257})
        [letter] = await all_settled(client)

    assert outcome.status == "failed"
    assert "correlation id has 257 characters; expected 1 to 256" in letter.content.cause.message


@pytest.mark.parametrize("request_id", ["", "x" * 257, "a\udce9"], ids=["empty", "too long", "half a surrogate"])
async def test_a_client_refuses_the_request_ids_that_a_supervisor_refuses(request_id: str) -> None:
    async with factory.team(TEAM, AGENTS, settled=True) as client:
        with pytest.raises(ContractError, match=r"request id .*nothing was sent"):
            await client.submit("crew", "amount 1", request_id=request_id)

        longest = await client.submit("crew", "amount 1", request_id="x" * 256)
        outcome = await longest.outcome(10)

    assert outcome.status == "completed"
