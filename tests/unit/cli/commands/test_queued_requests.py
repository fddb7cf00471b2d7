"""A queued request is visible in every view, and ends at the announced time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

import pytest
from support import factory
from support.core import card
from support.factory import echo, planner_of, synthesizer

from pointsman.cli.commands import submit, workflows
from pointsman.cli.render.output import Code
from pointsman.cli.support import checks
from pointsman.cli.support.check import Check
from pointsman.client.client import Client, Workflow
from pointsman.engine.process.heartbeat import team_card
from pointsman_schemas.events import Outcome
from pointsman_schemas.team import Limits, Team

HERE = {"url": None, "namespace": None, "json": False}
NOW = datetime(2026, 1, 31, tzinfo=UTC)


def asked(client: Client, team: str = "shpo") -> Workflow:
    return asyncio.run(client.submit(team, "hello"))


def announce(client: Client, team: str) -> None:
    asyncio.run(client.bus.registry.announce(team_card(Team(name=team), NOW, "s1")))


def run(call: Coroutine[Any, Any, Check]) -> Check:
    return asyncio.run(call)


def test_queued_requests_are_listed(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    workflow = asked(client)

    workflows.list_(None, limit=20, url=None, namespace=None, json=True)

    (line,) = (json.loads(each) for each in capsys.readouterr().out.splitlines())
    assert (line["workflow_id"], line["team"], line["status"], line["input"]) == (
        workflow.id, "shpo", "waiting for admission", "hello",
    )  # fmt: skip


@pytest.mark.parametrize(("cancelled", "status"), [(False, "waiting for admission"), (True, "asked to end")])
def test_list_and_show_use_one_term_for_queued_requests(
    client: Client, capsys: pytest.CaptureFixture[str], cancelled: bool, status: str
) -> None:
    workflow = asked(client)
    if cancelled:
        asyncio.run(workflow.cancel())

    workflows.list_(None, limit=20, url=None, namespace=None, json=True)
    workflows.show(workflow.id, url=None, namespace=None, json=True)

    assert [json.loads(line)["status"] for line in capsys.readouterr().out.splitlines()] == [status, status]


def test_unreadable_queued_requests_do_not_hide_the_others(client: Client) -> None:
    asyncio.run(client.bus.publish("pointsman.request.shop.anonymous", b"{", {}))
    asyncio.run(client.bus.publish("pointsman.request.sh\u00f6p.ada", b"{}", {}))

    (unread,) = asyncio.run(client.list())

    assert (unread.team, unread.input, unread.status) == ("shop", "", "waiting for admission")


def test_doctor_counts_queued_requests_of_a_team_without_a_supervisor(client: Client) -> None:
    assert run(checks.check_requests(client)).ok

    for team in ("shpo", "shpo", "shop"):
        asked(client, team)
    announce(client, "shop")

    check = run(checks.check_requests(client))
    assert not check.ok
    assert check.finding == "1 waits for shop; 2 wait for shpo, which has no supervisor, did you mean shop?"
    assert "`pointsman supervisor MODULE`" in check.advice
    assert "`pointsman cancel ID`" in check.advice


def test_queued_request_with_a_cancel_passes_doctor(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    workflow = asked(client)

    code = workflows.cancel(workflow.id, reason="", **HERE)

    told = capsys.readouterr()
    assert code == Code.OK
    assert told.out == f"Cancellation of {workflow.id} sent.\n"
    assert f"team shpo has no supervisor; {workflow.id} ends without any work once a supervisor starts" in told.err
    assert [each.status for each in asyncio.run(client.list())] == ["asked to end"]
    assert run(checks.check_requests(client)).ok


@pytest.fixture
def silence(client: Client, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return a function that returns the explanation for a request that no supervisor admits."""
    monkeypatch.setattr(submit, "NOTICE_AFTER_S", 0.0)

    def explain(*team: str) -> str:
        asyncio.run(submit._explain_silence(client, asked(client, *team)))
        return capsys.readouterr().err

    return explain


def test_unknown_team_is_answered_with_the_known_teams(client: Client, silence: Callable[..., str]) -> None:
    announce(client, "shop")
    announce(client, "newsroom")

    assert "no team is called shpo, did you mean shop? Known teams: newsroom, shop." in silence()


def test_request_to_an_agent_is_answered_with_the_known_teams(client: Client, silence: Callable[..., str]) -> None:
    announce(client, "shop")
    asyncio.run(client.bus.registry.announce(card("shpo", instance="a1")))

    assert "shpo is an agent, and requests go to teams. Known teams: shop." in silence()


def test_team_with_a_supervisor_is_known(client: Client, silence: Callable[..., str]) -> None:
    announce(client, "shop")

    assert "is a supervisor of team shop running?" in silence("shop")


async def test_admitted_request_is_no_longer_queued() -> None:
    crew = [planner_of({"id": "t1", "agent": "a", "intent": "help"}), synthesizer, echo("a")]
    async with factory.team(Team(name="crew", limits=Limits(deadline=30)), crew, settled=True) as client:
        done = await client.submit("crew", "help")
        await done.outcome(timeout=20)
        waiting = await client.submit("absent", "help")

        assert [each.id for each in await client.queued_requests()] == [waiting.id]
        assert [(each.id, each.status) for each in await client.list()] == [
            (waiting.id, "waiting for admission"),
            (done.id, "completed"),
        ]
        assert list(await client.queued_requests("crew")) == []


def test_interrupted_wait_says_that_the_work_continues(
    client: Client, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def interrupted(*_: object, **__: object) -> Outcome:
        raise asyncio.CancelledError

    monkeypatch.setattr(submit, "_wait_for_outcome", interrupted)

    with pytest.raises(asyncio.CancelledError):
        submit.submit(
            "shop", ["hello"], input_json=None, request_id="r-1", correlation_id=None, deadline=None, wait=True,
            watch=False, timeout=None, **HERE,
        )  # fmt: skip

    workflow = asyncio.run(client.list())[0].id
    told = capsys.readouterr().err
    assert f"follow it with `pointsman watch {workflow}`, or cancel it with `pointsman cancel {workflow}`" in told
