"""Commands show all data. Without data they show the alternatives."""

from __future__ import annotations

import asyncio
import io
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console
from support import factory
from support.factory import echo
from support.history import WORKFLOW, at, dispatched, failing, planned, started, store, tool
from support.letters import store_dead_letter
from support.waiting import until

from pointsman.cli.commands import agents, dead_letters, questions, trace, workflows
from pointsman.cli.render import wait_notices as waiting
from pointsman.cli.render.follow import print_outcome
from pointsman.cli.support import checks
from pointsman.client.client import Client
from pointsman.client.operations import AnswerResult
from pointsman.engine.process.heartbeat import team_card
from pointsman.errors import NotFoundError
from pointsman.ports.bus import QueueDepth
from pointsman_schemas.envelope import Envelope, encode
from pointsman_schemas.events import ATTEMPT_STARTED, Outcome, Progress
from pointsman_schemas.log import Entry, PlanAccepted, QuestionAsked, RetryScheduled
from pointsman_schemas.plan import Plan, PlannedTask
from pointsman_schemas.strict_json import dump
from pointsman_schemas.team import Team

NOWHERE = {"url": None, "namespace": None, "json": False}
NOW = datetime(2026, 1, 31, tzinfo=UTC)
FAR = datetime(2100, 1, 1, tzinfo=UTC)


def failed(client: Client, capsys: pytest.CaptureFixture[str]) -> str:
    outcome = Outcome(
        workflow_id="wf_1", team="shop", status="failed", reason="no plan", correlation_id="c", trace_id="0" * 32,
        started_at=NOW, ended_at=NOW, elapsed=0.0, sequential=0.0,
    )  # fmt: skip
    asyncio.run(print_outcome(client, outcome, "wf_1"))
    return capsys.readouterr().err


def test_known_dead_letter_causes_are_offered(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(store_dead_letter(client, "d1", "undecodable", workflow="wf_2"))
    refused = failed(client, capsys)
    assert "dead list" not in refused
    assert "pointsman resume" not in refused  # no task failed, because no task started

    asyncio.run(store_dead_letter(client, "d2", "undecodable"))
    assert "`pointsman dead list --workflow wf_1` shows the dead letters." in failed(client, capsys)


def dead(capsys: pytest.CaptureFixture[str], **which: str) -> str:
    dead_letters.list_(**which, **NOWHERE)
    return capsys.readouterr().out.strip()


def test_unknown_cause_is_answered_with_the_known_causes(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    assert dead(capsys, cause="foo") == "No dead letters."

    for name, cause in (("d1", "undecodable"), ("d2", "handler_error"), ("d3", "handler_error")):
        asyncio.run(store_dead_letter(client, name, cause))

    assert dead(capsys, cause="foo") == "No dead letter has the cause foo. Causes: handler_error (2), undecodable (1)."
    assert dead(capsys, origin="foo") == "No dead letter matches. `pointsman dead list` shows all."


def test_cause_is_whole_in_a_pipe(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    message = "no bolts " * 30 + "at all"
    asyncio.run(store_dead_letter(client, "d1", "handler_error", message=message))

    assert message in dead(capsys)


def listed(capsys: pytest.CaptureFixture[str], team: str | None) -> str:
    workflows.list_(team, limit=20, **NOWHERE)
    return capsys.readouterr().out.strip()


def test_unknown_team_is_answered_with_the_known_teams(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    assert listed(capsys, "sho") == "No workflows of sho, and no supervisor. Known teams: none."

    asyncio.run(client.bus.registry.announce(team_card(Team(name="shop"), NOW, "s1")))

    assert listed(capsys, "sho") == "No workflows of sho, and no supervisor. Known teams: shop."
    assert listed(capsys, "shop") == "No workflows of shop yet. Start one with `pointsman submit shop TEXT`."


def test_show_has_the_plan_and_all_earlier_plans(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (PlannedTask(id=name, agent="fitter", intent="fit") for name in ("t1", "t2"))
    revised = PlanAccepted(at=at(3), revision=2, plan=Plan(goal="mend it", tasks=(second,)))
    asyncio.run(store(client.bus, started(), *planned(first), revised))

    workflows.show(WORKFLOW, url=None, namespace=None, json=True)

    shown = json.loads(capsys.readouterr().out)
    assert [[task["id"] for task in plan["tasks"]] for plan in shown["plans"]] == [["t1"], ["t2"]]
    assert shown["plan"] == shown["plans"][-1]


def test_live_agent_is_not_waited_for(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(client.bus.registry.announce(echo("tea").card.model_copy(update={"instance": "i1"})))

    agents.agents(["tea"], **NOWHERE)

    told = capsys.readouterr()
    assert told.err == ""
    assert "tea" in told.out


async def test_wait_ends_when_the_agent_is_live(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    waiting = asyncio.create_task(agents._wait_for_agents(client, ["tea"], 60))
    said: list[str] = []

    async def told() -> bool:
        said.append(capsys.readouterr().err)
        return "waiting for tea" in "".join(said)

    await until(told)
    assert not waiting.done()

    await client.bus.registry.announce(echo("tea").card.model_copy(update={"instance": "i1"}))

    await asyncio.wait_for(waiting, 20)


async def test_waiting_for_agents_ends_with_the_names_of_those_missing(client: Client) -> None:
    with pytest.raises(NotFoundError, match=r"^cake, tea not live after 0\.001 s; start an agent with"):
        await agents._wait_for_agents(client, ["tea", "cake"], 0.001)


def test_id_is_printed_unchanged(
    client: Client, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def approve(approval: str, **_: object) -> AnswerResult:
        return AnswerResult(True, f"{approval} is approved")

    monkeypatch.setattr(client.operations, "approve", approve)

    questions.approve("wf_83a2-q1", **NOWHERE)

    assert capsys.readouterr().out == "wf_83a2-q1 is approved.\n"


def test_piped_row_is_not_shortened(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(store_dead_letter(client, "d1", "handler_error", message="no bolts " * 30))
    asyncio.run(store_dead_letter(client, "d2", "handler_error", message="no nuts"))
    asyncio.run(client.submit("shop", "no bolts " * 30))
    asyncio.run(client.submit("shop", "no nuts"))

    for rows in (dead(capsys), listed(capsys, None)):
        (short,) = (row for row in rows.splitlines() if "no nuts" in row)
        assert short.endswith("no nuts")
        assert "bolts" in rows


@pytest.mark.parametrize("alone", [False, True])
def test_teams_are_listed_with_their_supervisors_below_the_agents(
    client: Client, capsys: pytest.CaptureFixture[str], alone: bool
) -> None:
    tea = [] if alone else [echo("tea").card.model_copy(update={"instance": "i1"})]
    for card in (*tea, team_card(Team(name="shop"), NOW, "s1"), team_card(Team(name="shop"), NOW, "s2")):
        asyncio.run(client.bus.registry.announce(card))

    agents.agents(**NOWHERE)
    agents.agents(**{**NOWHERE, "json": True})

    first, rest = capsys.readouterr().out.split("\n\n")
    head, shop, *lines = rest.splitlines()
    assert first.startswith("No agents are live" if alone else "agent ")
    assert (head.split()[:3], shop.split()[:2]) == (["team", "supervisors", "waiting"], ["shop", "2"])
    assert [json.loads(line).get("team") for line in lines] == [*([] if alone else [None]), "shop"]


def test_agent_description_fits_the_terminal(client: Client) -> None:
    card = echo("tea").card.model_copy(update={"description": "Makes tea, " * 9 + "and coffee"})
    long = card.model_copy(update={"name": "long", "description": "Makes tea, " * 90})

    terminal = Console(file=io.StringIO(), width=180)
    terminal.print(agents._agent_table({"tea": [card], "long": [long]}, [None, None], {}, 180, NOW))

    _, tea, cut = terminal.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert tea.rstrip().endswith("and coffee")
    assert len(cut.rstrip()) > 170


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_names_and_numbers_of_agents_are_never_cut(client: Client, width: int) -> None:
    card = team_card(Team(name="shop"), NOW, "s1").model_copy(update={"description": "Sells all there is " * 5})

    terminal = Console(file=io.StringIO(), width=width)
    terminal.print(agents._agent_table({"billing": [card]}, [QueueDepth(12, 3)], {}, width, NOW))

    head, row, *more = terminal.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert {"agent", "instances", "waiting"} <= set(head.split())
    assert [row.split()[0], *[cell for cell in row.split() if cell.isdigit()]] == ["billing", "1", "12", "3", "8"]
    assert width == 200 or not more
    assert width < 60 or "running" in head
    assert width in (40, 200) or row.rstrip().endswith("…"), "a cut description must end with an ellipsis"


def test_task_with_a_missing_agent_is_waiting_in_every_view(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    log = [started(team="shop"), *planned(PlannedTask(id="t1", agent="fitter", intent="fit"))]
    log.append(dispatched("t1", "fitter", 1))
    asyncio.run(store(client.bus, *log, team="shop"))
    said = "waiting for an agent named fitter: none is alive"

    workflows.show(WORKFLOW, **NOWHERE)
    shown = capsys.readouterr().out
    trace.trace(WORKFLOW, follow=False, otlp=None, **NOWHERE)
    drawn = capsys.readouterr().out
    gone = asyncio.run(checks.check_tasks(client, "shop"))
    asyncio.run(client.bus.registry.announce(echo("fitter").card.model_copy(update={"instance": "i1"})))
    there = asyncio.run(checks.check_tasks(client, "shop"))
    workflows.show(WORKFLOW, **NOWHERE)

    assert f"t1 is {said}" in shown
    assert said in " ".join(drawn.split())
    assert [line for line in (shown + drawn).splitlines() if line != line.rstrip()] == []
    bar = next(line for line in drawn.splitlines() if "t1" in line and "fitter" in line)
    assert "█" not in bar
    assert "─" in bar
    assert (gone.ok, gone.finding) == (False, "1 waits for the agent fitter, which is not live")
    assert there.ok
    assert "waiting" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ([], "handed over"),
        ([*failing()[6:7], RetryScheduled(at=at(2), task_id="t1", attempt=2, agent="fitter", not_before=FAR,
                                          deadline=FAR)], "waiting for a retry"),
        ([QuestionAsked(at=at(2), question="a", about="task", task_id="t1", expires_at=FAR)],
         "waiting for an answer"),
    ],
    ids=["queue", "retry", "approval"],
)  # fmt: skip
def test_show_and_trace_use_one_term_for_a_waiting_task(
    client: Client, capsys: pytest.CaptureFixture[str], more: list[Entry], said: str
) -> None:
    log = [started(), *planned(PlannedTask(id="t1", agent="fitter", intent="fit")), dispatched("t1", "fitter", 1)]
    asyncio.run(store(client.bus, *log, *more))
    asyncio.run(client.bus.registry.announce(echo("fitter").card.model_copy(update={"instance": "i1"})))

    workflows.show(WORKFLOW, **NOWHERE)
    shown = capsys.readouterr().out
    trace.trace(WORKFLOW, follow=False, otlp=None, **{**NOWHERE, "json": True})
    traced = json.loads(capsys.readouterr().out)["children"][0]["children"][1]

    row = next(line for line in shown.split("\nTasks\n")[1].splitlines() if line.startswith("t1"))
    assert " ".join(row.split()).startswith(f"t1 fitter {said}")
    assert (traced["task_id"], traced["status"]) == ("t1", said)


@pytest.mark.parametrize("as_json", [False, True])
def test_otlp_file_is_announced_on_standard_error(
    client: Client, capsys: pytest.CaptureFixture[str], tmp_path: Path, as_json: bool
) -> None:
    file = tmp_path / "spans.json"
    asyncio.run(store(client.bus, started(), *planned(), dispatched("t1", "fitter", 1)))

    trace.trace(WORKFLOW, follow=False, otlp=str(file), **{**NOWHERE, "json": as_json})

    out, err = capsys.readouterr()
    spans = json.loads(file.read_text())["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert err == f"pointsman: wrote the trace of {WORKFLOW} to {file} as OTLP/JSON; spans: {len(spans)}\n"
    assert str(file) not in out


def test_otlp_on_standard_output_is_the_only_output(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(store(client.bus, started(), *planned(), dispatched("t1", "fitter", 1)))

    trace.trace(WORKFLOW, follow=False, otlp="-", **NOWHERE)

    out, err = capsys.readouterr()
    assert list(json.loads(out)) == ["resourceSpans"]
    assert err == ""


def test_task_is_running_in_show_once_its_worker_began(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    begun = tool(ATTEMPT_STARTED, 2, 2, kind="progress")
    envelope = Envelope(id="p1", type=Progress.event_type, source="test", time=at(2), subject=WORKFLOW)
    asyncio.run(store(client.bus, started(), dispatched("t1", "fitter", 1)))
    asyncio.run(
        client.bus.publish(client.subjects.event("crew", WORKFLOW, "fitter", "t1"), dump(begun), encode(envelope))
    )
    asyncio.run(client.bus.registry.announce(echo("fitter").card.model_copy(update={"instance": "i1"})))

    workflows.show(WORKFLOW, **NOWHERE)

    assert "t1 fitter running" in " ".join(capsys.readouterr().out.split())


async def test_waiting_caller_is_told_once_which_agent_is_missing(
    client: Client, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "NOTICE_AFTER_S", 0.0)
    log = [started(team="shop"), *planned(PlannedTask(id="t1", agent="fitter", intent="fit"))]
    await store(client.bus, *log, dispatched("t1", "fitter", 1), team="shop")
    looks: list[None] = []
    alive = client.operations.live_names

    async def looked() -> frozenset[str]:
        looks.append(None)
        return await alive()

    monkeypatch.setattr(client.operations, "live_names", looked)

    workflow = factory.workflow_of(client, WORKFLOW, "shop")
    telling = asyncio.create_task(waiting.report_waits(client, workflow, questions=True))
    await until(lambda: len(looks) > 2)
    telling.cancel()

    assert capsys.readouterr().err.count("t1 is waiting for an agent named fitter: none is alive") == 1
