"""Every block of docs/webhooks.md runs in order, with a team, a webhook service and the page's receiver."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest
from support import factory
from support.cluster import free_ports
from support.docs import ROOT, blocks_of
from support.webhooks import served_webhooks

from pointsman.settings import Settings
from pointsman_agents.customer_service.account import account
from pointsman_agents.customer_service.billing import billing
from pointsman_agents.customer_service.team import team
from pointsman_agents.customer_service.technical import technical
from pointsman_agents.planner import planner
from pointsman_agents.synthesizer import synthesizer

pytestmark = pytest.mark.timeout(120)


async def test_every_block_of_the_webhooks_page_runs(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POINTSMAN_MODEL", "offline")
    monkeypatch.setenv("POINTSMAN_CUSTOMER_SERVICE_DATA", str(tmp_path))
    port = str(free_ports(1)[0])
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "POINTSMAN_URL": settings.url,
        "POINTSMAN_NAMESPACE": settings.namespace,
        "POINTSMAN_WEBHOOK_PRIVATE_NETWORKS": "true",
        "RECEIVER": f"http://127.0.0.1:{port}/events",
        "PORT": port,
        "PYTHONWARNINGS": "error",
    }
    outputs: list[str] = []
    received = ""
    agents = [planner, synthesizer, billing, technical, account]
    # The receiver starts beside the request, so deliveries are repeated until the receiver listens.
    retries = ",".join(["0.1"] * 300)
    async with factory.team(team, agents, on=settings), served_webhooks(settings, webhook_retries=retries):
        receiver: asyncio.subprocess.Process | None = None
        for language, body in blocks_of((ROOT / "docs" / "webhooks.md").read_text()):
            if language == "python":
                (tmp_path / "receive.py").write_text(body)
                environment["WEBHOOK_SECRET"] = outputs[0].split()[1]
                receiver = await start([sys.executable, "receive.py"], environment, tmp_path)
                continue
            lines = [["bash", "-ec", line] for line in body.splitlines()]
            outputs += [await output_of(await start(command, environment, tmp_path)) for command in lines]
            if receiver is not None and not received:
                received = await output_of(receiver)

    created, answered, listed, deliveries = outputs
    assert created.startswith("wh_")
    assert "duplicate" in answered
    assert received.startswith("workflow.ended wf_")
    assert "duplicate" in received
    assert created.split()[0] in listed
    assert "delivered" in deliveries


async def start(command: list[str], environment: dict[str, str], folder: Path) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *command, env=environment, cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )


async def output_of(process: asyncio.subprocess.Process) -> str:
    async with asyncio.timeout(60):
        said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()
    return said.decode()
