"""The commands, panels and alerts of the runbook exist and work."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from string import Template

import pytest
import yaml
from support import factory
from support.factory import echo, planner_of, synthesizer
from support.prometheus import every_name
from typer.testing import CliRunner

from pointsman import agent
from pointsman.cli.app import app
from pointsman.errors import TaskError
from pointsman.settings import Settings
from pointsman.telemetry import semconv
from pointsman_schemas.team import Limits, RetryPolicy, Team

ROOT = Path(__file__).parents[2]
RUNBOOK = (ROOT / "docs" / "runbook.md").read_text()
TELEMETRY = (ROOT / "docs" / "telemetry.md").read_text()
PANELS = json.loads((ROOT / "deploy" / "grafana" / "pointsman.json").read_text())["panels"]
RULES = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yml").read_text())["groups"][0]["rules"]
QUERIES = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]
QUERIES += [(rule["alert"], rule["expr"]) for rule in RULES]
FUNCTIONS = {
    "and",
    "by",
    "count_over_time",
    "histogram_quantile",
    "increase",
    "le",
    "max",
    "on",
    "or",
    "rate",
    "sum",
    "unless",
}
TEAM = Team(name="crew", limits=Limits(deadline=30), retry=RetryPolicy(attempts=1))


@agent(name="lost", description="Cannot do it")
async def lost(request: str) -> str:
    raise TaskError("nothing there")


@pytest.mark.parametrize(("where", "query"), QUERIES, ids=[where for where, _ in QUERIES])
def test_every_metric_and_label_of_a_panel_or_an_alert_exists(where: str, query: str) -> None:
    plain = re.sub(r'"[^"]*"', "", query)
    words = set(re.findall(r"[a-z_][a-z0-9_]*", re.sub(r"\[[^]]*]| offset \w+", "", plain))) - FUNCTIONS
    labels = set(re.findall(r"(\w+)\s*!?=~?", plain))
    for grouped in re.findall(r"(?:by|on) \(([^)]*)\)", plain):
        labels |= {label.strip() for label in grouped.split(",") if grouped}
    attributes = {getattr(semconv, name).replace(".", "_") for name in semconv.__all__ if name.isupper()}

    assert words - labels <= every_name(), where
    assert labels - {"le"} <= attributes, where


@pytest.mark.parametrize(
    ("alert", "panel"),
    [
        ("PointsmanQueueGrows", "Queue depth"),
        ("PointsmanDeadLetters", "Dead letters"),
        ("PointsmanCircuitOpen", "Circuits"),
        ("PointsmanTelemetryLost", "Telemetry lost"),
        ("PointsmanWebhooksStopped", "Webhooks waiting"),
        ("PointsmanWebhooksLate", "Webhooks late"),
        ("PointsmanWebhookDisabled", "Webhooks disabled"),
    ],
)
def test_alert_fires_at_the_threshold_of_its_panel(alert: str, panel: str) -> None:
    (rule,) = [rule["expr"] for rule in RULES if rule["alert"] == alert]
    (drawn,) = [query for title, query in QUERIES if title == panel]

    assert re.sub(r" >=? [0-9.]+( unless .*)?$", "", rule).replace("( ", "(") == drawn


def test_runbook_names_every_alert_and_only_existing_panels() -> None:
    titles = {panel["title"] for panel in PANELS}
    named = {title for line in re.findall(r"^Panels?: (.*?)(?:Alert|$)", RUNBOOK, re.MULTILINE)
             for title in re.findall(r"\*\*(.+?)\*\*", line)}  # fmt: skip
    alerts = {rule["alert"] for rule in RULES}
    headings = {
        re.sub(r"[^a-z -]", "", title.lower()).replace(" ", "-") for title in re.findall(r"^## (.*)$", RUNBOOK, re.M)
    }

    assert named
    assert named <= titles
    assert set(re.findall(r"`(Pointsman\w+)`", RUNBOOK)) == alerts
    assert {rule["annotations"]["runbook"].partition("#")[2] for rule in RULES} <= headings


@pytest.mark.parametrize("about", re.split(r"^## ", RUNBOOK, flags=re.M)[1:], ids=lambda part: part.splitlines()[0])
def test_every_trouble_has_its_command_its_panel_and_its_alert(about: str) -> None:
    assert re.search(r"^```sh\npointsman |`pointsman \w", about, re.M)
    assert re.search(r"^Panels?: \*\*", about, re.M)
    assert re.search(r"Alerts?: `Pointsman", about)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool of Prometheus is not installed")
def test_alerts_fire_when_they_should_and_not_otherwise() -> None:
    told = Path(__file__).with_name("alerts.yml")
    assert set(re.findall(r"alertname: (\w+)", told.read_text())) == {rule["alert"] for rule in RULES}

    ran = subprocess.run(["promtool", "test", "rules", told], capture_output=True, text=True, timeout=50)

    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.timeout(120)
async def test_every_command_of_the_runbook_runs(
    settings: Settings, bus: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POINTSMAN_URL", settings.url)
    monkeypatch.setenv("POINTSMAN_NAMESPACE", settings.namespace)
    commands = [
        line
        for block in re.findall(r"^```sh\n(.*?)^```$", RUNBOOK, re.DOTALL | re.MULTILINE)
        for line in block.splitlines()
    ]
    plan = ({"id": "t1", "agent": "a", "intent": "help"}, {"id": "t2", "agent": "lost", "intent": "find"})
    ran: dict[str, tuple[int, str]] = {}
    async with factory.team(TEAM, [planner_of(*plan), synthesizer, echo("a"), lost], on=settings) as client:
        workflow = await client.submit("crew", "hello")
        await workflow.outcome(30)
        (letter,) = await client.operations.dead_letters()
        # A resume removes the dead letters of the earlier round.
        for command in sorted(commands, key=lambda line: line.startswith("pointsman resume")):
            program, *arguments = shlex.split(Template(command).substitute(ID=workflow.id, LETTER=letter.content.id))
            assert program == "pointsman"
            result = await asyncio.to_thread(CliRunner().invoke, app, arguments)
            ran[command] = (result.exit_code, result.stdout + result.stderr)

    # The workflow has ended, so `cancel` and the replay of its dead letter report this. Doctor reports the dead letter.
    may_find = ("pointsman cancel", "pointsman dead replay", "pointsman doctor")
    assert [(command, said) for command, (code, said) in ran.items()
            if code > (1 if command.startswith(may_find) else 0)] == []  # fmt: skip
    assert "already ended" in ran['pointsman cancel $ID --reason "stuck"'][1]
    assert "no difference with the installed code" in ran["pointsman replay workflow.json"][1]


def test_the_example_of_a_process_pool_runs(tmp_path: Path) -> None:
    (body,) = re.findall(r"^```python\n(.*?)^```$", TELEMETRY, re.DOTALL | re.MULTILINE)
    (tmp_path / "counting.py").write_text(body)

    ran = subprocess.run([sys.executable, "counting.py"], cwd=tmp_path, capture_output=True, text=True, timeout=50)

    assert (ran.returncode, ran.stdout) == (0, "3\n"), ran.stderr
