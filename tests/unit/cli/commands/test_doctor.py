"""The findings of `pointsman doctor` and their layout."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest
from rich.console import Console
from support.factory import echo

from pointsman.cli.commands import agents, doctor
from pointsman.cli.support import checks
from pointsman.cli.support.check import Check
from pointsman.client.client import Client
from pointsman.core.model.agent_health import Circuit, Circuits
from pointsman.engine.process.heartbeat import team_card
from pointsman_schemas.card import AgentCard
from pointsman_schemas.strict_json import dump
from pointsman_schemas.team import ANY, RetryPolicy, Team

NOWHERE = {"url": None, "namespace": None, "json": False}
NOW = datetime(2026, 1, 31, tzinfo=UTC)


def test_doctor_fails_on_a_team_without_a_supervisor(client: Client) -> None:
    gone = asyncio.run(checks.check_supervisor(client, "shop"))
    asyncio.run(client.bus.registry.announce(team_card(Team(name="shop"), NOW, "s1")))
    there = asyncio.run(checks.check_supervisor(client, "shop"))

    assert [(check.ok, check.finding) for check in gone] == [(False, "shop: none live")]
    assert [(check.ok, check.finding) for check in there] == [(True, "shop: 1 live")]


def test_doctor_continues_its_output_in_order(
    client: Client, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "console", lambda: Console(force_terminal=True, color_system=None, width=60))

    doctor.doctor(None, url=None, namespace=None, json=False)

    lines = capsys.readouterr().out.splitlines()
    (at,) = (index for index, line in enumerate(lines) if line.startswith("ok   streams"))
    assert lines[at].startswith("ok   streams       no message is")
    assert lines[at + 1].startswith(" " * 19 + "a limit")


def test_check_without_a_problem_gives_no_advice(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    doctor.doctor("shop", url=None, namespace=None, json=True)

    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {bool(check.get("advice")) for check in found if check["ok"]} == {False}
    assert {bool(check.get("advice")) for check in found if not check["ok"]} == {True}


def test_early_exit_of_a_reader_closes_the_connection_of_doctor(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    owners: list[object] = []

    @asynccontextmanager
    async def session(*_: object, **__: object) -> AsyncIterator[Client]:
        owners.append(asyncio.current_task())
        try:
            yield client
        finally:
            owners.append(asyncio.current_task())

    def emit(check: Check) -> None:
        if check.name == "broker":
            raise BrokenPipeError

    monkeypatch.setattr(checks, "session", session)
    monkeypatch.setattr(doctor, "print_json", emit)

    with pytest.raises(BrokenPipeError):
        doctor.doctor(None, url=None, namespace=None, json=True)

    began, ended = owners
    assert ended is began


@pytest.mark.parametrize(("second", "told"), [("string", False), ("integer", True)])
def test_doctor_fails_on_agents_of_one_name_with_different_schemas(
    client: Client, capsys: pytest.CaptureFixture[str], second: str, told: bool
) -> None:
    for instance, kind in (("i1", "string"), ("i2", second)):
        update = {"instance": instance, "output_schema": {"type": kind}}
        asyncio.run(client.bus.registry.announce(echo("tea").card.model_copy(update=update)))

    agents.agents(**NOWHERE)
    assert ("2 versions with different schemas" in capsys.readouterr().out) is told

    doctor.doctor(None, url=None, namespace=None, json=True)
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    [schemas] = [check for check in found if check["name"] == "versions"]
    assert schemas["ok"] is not told
    assert ("tea: 2 versions with different schemas" in schemas["finding"]) is told


@pytest.mark.parametrize(("minutes", "told"), [(1, False), (30, True)])
def test_doctor_and_agents_name_two_versions_of_one_queue(
    client: Client, capsys: pytest.CaptureFixture[str], minutes: float, told: bool
) -> None:
    for instance, digest in (("i1", "1" * 16), ("i2", "2" * 16)):
        started = datetime.now(UTC) - timedelta(minutes=minutes)
        update = {"instance": instance, "digest": digest, "started_at": started}
        asyncio.run(client.bus.registry.announce(echo("tea").card.model_copy(update=update)))

    agents.agents(**{**NOWHERE, "json": True})
    (listed,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    doctor.doctor(None, url=None, namespace=None, json=True)
    [versions] = [
        check for check in map(json.loads, capsys.readouterr().out.splitlines()) if check["name"] == "versions"
    ]

    assert listed["revisions"] == {"1.0.0+11111111": 1, "1.0.0+22222222": 1}
    assert (listed["mixed"] is not None, versions["ok"]) == (told, not told)
    assert "1.0.0+11111111" in versions["finding"]


def test_doctor_reads_the_models_that_live_workers_announce(
    client: Client, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POINTSMAN_MODEL", "openai:gpt-x")  # doctor has no key, but the workers have one
    for name, model, problems in (("tea", "anthropic:c", ()), ("milk", "offline", ("no API key is set",))):
        update = {"instance": name, "model": model, "problems": problems}
        asyncio.run(client.bus.registry.announce(echo(name).card.model_copy(update=update)))

    doctor.doctor(None, url=None, namespace=None, json=True)
    checks_found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    [model] = [check for check in checks_found if check["name"] == "model"]
    agents.agents(**NOWHERE)

    assert model["ok"]
    assert model["finding"] == "live workers use anthropic:c (tea); offline (milk); no API key is set"
    assert "milk: no API key is set" in capsys.readouterr().out


SHOP = Team(name="shop", agents=("stock", "buyer"))


@pytest.mark.parametrize(
    ("second", "told"),
    [
        (team_card(Team(name="shop", agents=("buyer", "stock")), NOW, "s2"), False),
        (team_card(Team(name="shop", agents=ANY), NOW, "s2"), True),
        (team_card(Team(name="shop", agents=SHOP.agents, retry=RetryPolicy(attempts=1)), NOW, "s2"), True),
        (AgentCard(name="shop", description="of an earlier release", team=True, instance="s2"), False),
    ],
)
def test_doctor_fails_on_supervisors_with_different_team_definitions(
    client: Client, capsys: pytest.CaptureFixture[str], second: AgentCard, told: bool
) -> None:
    for card in (team_card(SHOP, NOW, "s1"), second):
        asyncio.run(client.bus.registry.announce(card))

    agents.agents(**NOWHERE)
    assert ("2 different definitions: " in capsys.readouterr().out) is told

    doctor.doctor(None, url=None, namespace=None, json=True)
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    [definitions] = [check for check in found if check["name"] == "definitions"]
    assert definitions["ok"] is not told
    assert ("shop: 2 different definitions" in definitions["finding"]) is told


@pytest.mark.parametrize(("left", "told"), [((0, 0), ""), ((1, 0), "1 cancelled handler still running"),
                                            ((2, 1), "3 cancelled handlers still running")])  # fmt: skip
def test_doctor_fails_on_handlers_that_ignore_their_stop(
    client: Client, capsys: pytest.CaptureFixture[str], left: tuple[int, int], told: str
) -> None:
    for instance, amount in zip(("i1", "i2"), left, strict=True):
        update = {"instance": instance, "orphaned_handlers": amount}
        asyncio.run(client.bus.registry.announce(echo("tea").card.model_copy(update=update)))

    agents.agents(**NOWHERE)
    assert ("still running" in (shown := capsys.readouterr().out)) is bool(told)
    assert told in shown

    agents.agents(**{**NOWHERE, "json": True})
    assert json.loads(capsys.readouterr().out)["orphaned_handlers"] == sum(left)

    doctor.doctor(None, url=None, namespace=None, json=True)
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    [handlers] = [check for check in found if check["name"] == "handlers"]
    assert handlers["ok"] is not bool(told)
    assert told in handlers["finding"]


@pytest.mark.parametrize(
    ("alive", "left", "probe", "ok", "seen"),
    [
        (True, 60, "", False, "tea: circuit open, no tasks until "),
        (True, 60, "w/t/1", False, "tea: circuit open, a probe is running"),
        (True, 0, "", True, "tea: circuit open, the next task is a probe"),
        (True, 0, "w/t/1", True, "tea: circuit open, the next task is a probe"),
        (False, 60, "", True, "all closed"),
    ],
)
def test_doctor_fails_on_an_open_circuit_of_a_live_agent(
    client: Client, capsys: pytest.CaptureFixture[str], alive: bool, left: int, probe: str, ok: bool, seen: str
) -> None:
    now = datetime.now(UTC)
    circuit = Circuit(since=now, until=now + timedelta(seconds=left), probe=probe)
    asyncio.run(client.bus.publish(client.subjects.circuits, dump(Circuits(agents={"tea": circuit})), {}))
    if alive:
        asyncio.run(client.bus.registry.announce(echo("tea").card.model_copy(update={"instance": "i1"})))

    doctor.doctor(None, url=None, namespace=None, json=True)
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    agents.agents(**NOWHERE)

    [circuits] = [check for check in found if check["name"] == "circuits"]
    assert circuits["ok"] is ok
    assert circuits["finding"].startswith(seen)
    assert (seen.removeprefix("tea: ") in capsys.readouterr().out) is alive


def test_doctor_reports_refused_cards(
    client: Client, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(_: object) -> dict[str, str]:
        return {"writer.a": "the card is of 'reader.a'"}

    monkeypatch.setattr(type(client.bus.registry), "refused", refused)

    doctor.doctor(None, url=None, namespace=None, json=True)

    checks = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    [cards] = [check for check in checks if check["name"] == "cards"]
    assert not cards["ok"]
    assert cards["finding"] == "writer.a: the card is of 'reader.a'"
