"""The example readers in the README and the guide read every outcome, also an outcome in the object store.

Class of fault: a reader in another language works for small bodies, but fails at the first large body.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest
from support.docs import ROOT, blocks_of
from support.processes import System

from pointsman.bus.embedded_server import EmbeddedBroker
from pointsman.settings import Settings

pytestmark = pytest.mark.timeout(120)

TEAM = """
from pointsman import Pipeline, Stage, Team, agent


@agent
async def writer(request: str) -> str:
    "Write much."
    return "x" * 2_000_000


team = Team(name="{team}", agents=("writer",), strategy=Pipeline(stages=(Stage(agent="writer"),)))
"""


def block(document: str, name: str) -> str:
    (found,) = [body for _, body in blocks_of((ROOT / document).read_text()) if body.startswith(f"# {name}\n")]
    return found


@pytest.mark.parametrize(
    ("document", "name", "team"),
    [("README.md", "publish.py", "customer-service"), ("docs/guide.md", "outcomes.py", "shop")],
)
async def test_a_reader_of_the_docs_takes_an_outcome_above_the_message_limit(
    tmp_path: Path, document: str, name: str, team: str
) -> None:
    (tmp_path / "large.py").write_text(TEAM.format(team=team))
    (tmp_path / name).write_text(block(document, name))
    async with (
        EmbeddedBroker(tmp_path / "broker") as broker,
        System(tmp_path / "processes", Settings(url=broker.url)) as system,
    ):
        target = str(tmp_path / "large.py")
        await asyncio.gather(system.supervisor(target), system.worker(target))
        if name == "outcomes.py":
            await (await system.client.submit(team, "write")).outcome(30)

        reader = await asyncio.create_subprocess_exec(
            sys.executable,
            name,
            cwd=tmp_path,
            env={**os.environ, "POINTSMAN_URL": broker.url},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        output, errors = await asyncio.wait_for(reader.communicate(), 60)

    assert reader.returncode == 0, errors.decode()
    assert output.decode().rstrip().endswith("completed " + "x" * 2_000_000)
