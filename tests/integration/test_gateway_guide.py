"""Every block of docs/gateway.md and docs/a2a.md runs in order with one running gateway."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest
from support import factory
from support.docs import ROOT, blocks_of
from support.gateway import served_gateway

from pointsman.gateway.hook_config import load_hooks
from pointsman.settings import Settings
from pointsman_agents.customer_service.account import account
from pointsman_agents.customer_service.billing import billing
from pointsman_agents.customer_service.team import team
from pointsman_agents.customer_service.technical import technical
from pointsman_agents.planner import planner
from pointsman_agents.synthesizer import synthesizer

pytestmark = pytest.mark.timeout(180)

AGENTS = [planner, synthesizer, billing, technical, account]


async def test_every_block_of_the_pages_of_the_gateway_runs(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POINTSMAN_MODEL", "offline")
    monkeypatch.setenv("POINTSMAN_CUSTOMER_SERVICE_DATA", str(tmp_path))
    outputs: list[str] = []
    # The blocks read the lists of models and tools once, so the card of the team must not expire on a busy machine.
    settings = settings.model_copy(update={"heartbeat": 5.0})
    async with factory.team(team, AGENTS, on=settings), served_gateway(settings) as address:
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "POINTSMAN_URL": settings.url,
            "POINTSMAN_NAMESPACE": settings.namespace,
            "GATEWAY": address,
            "PYTHONWARNINGS": "error",
        }
        pages = [(ROOT / "docs" / name).read_text() for name in ("gateway.md", "a2a.md")]
        for language, body in [block for page in pages for block in blocks_of(page)]:
            if language == "text":
                continue
            if language == "toml":
                (tmp_path / "hooks.toml").write_text(body)
                monkeypatch.setenv("GITHUB_WEBHOOK_SECRET", "secret")
                assert load_hooks(str(tmp_path / "hooks.toml"))["issues"].form == "github"
                continue
            if language == "python":
                name = body.splitlines()[0].removeprefix("# ")
                (tmp_path / name).write_text(body)
                commands = [[sys.executable, name]]
            else:
                commands = [["bash", "-ec", line] for line in body.splitlines()]
            outputs += [await output_of(command, environment, tmp_path) for command in commands]

    assert "duplicate" in outputs[0]
    assert "workflow_started" in outputs[1]
    assert "duplicate" in outputs[1]
    assert outputs[2] == "invoice.txt request 19\n"
    assert [line.split()[:2] for line in outputs[3].splitlines()] == [["1", "completed"], ["2", "completed"]]
    assert outputs[4].startswith("['customer-service']\n")
    assert outputs[4].count("duplicate") == 2
    assert "location: /v1/workflows/wf_" in outputs[5]
    assert outputs[6].startswith("['customer-service']\n1: ")
    assert "duplicate" in outputs[6]
    assert "customer-service: completed on" in outputs[6]
    assert outputs[7].startswith("pmk_")
    assert "shop" in outputs[8]
    assert "duplicate" in outputs[9]


async def output_of(command: list[str], environment: dict[str, str], folder: Path) -> str:
    process = await asyncio.create_subprocess_exec(
        *command, env=environment, cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    async with asyncio.timeout(60):
        said, _ = await process.communicate()
    assert process.returncode == 0, f"{command}\n{said.decode()}"
    return said.decode()
