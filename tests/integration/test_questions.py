"""A workflow waits for a person's answer even if all processes except the broker are killed and replaced."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.broker import remove_streams
from support.processes import System, wait_for

from pointsman.settings import Settings

pytestmark = pytest.mark.timeout(120)

TEAM = """
from pydantic import BaseModel

from pointsman import Pipeline, Stage, Team, agent


class Refund(BaseModel):
    order: str
    amount: float


@agent(name="payer", description="Pays refunds", approval="required")
async def payer(refund: Refund) -> str:
    return f"{refund.order}: {refund.amount:g}"


team = Team(name="refunds", agents=("payer",), strategy=Pipeline(stages=(Stage(agent="payer"),)))
"""


async def test_edited_approval_finishes_a_workflow_after_all_processes_were_killed(
    settings: Settings, tmp_path: Path
) -> None:
    (tmp_path / "refunds.py").write_text(TEAM)
    target = str(tmp_path / "refunds.py")
    async with System(tmp_path, settings) as system:
        supervisor, worker = await system.supervisor(target), await system.worker(target)
        workflow = await system.client.submit("refunds", {"order": "o-17", "amount": 90.0})

        async def asked() -> str | None:
            return next((each.id for each in await system.client.operations.questions(workflow.id)), None)

        approval = await wait_for(asked, "question to a person")
        await supervisor.kill()
        await worker.kill()
        await system.supervisor(target)
        await system.worker(target)
        done = await system.command("approve", approval or "", "--input", '{"order": "o-17", "amount": 45.0}', "--json")
        outcome = await workflow.outcome(30)
    await remove_streams(settings)

    assert done.code == 0
    assert (outcome.status, outcome.answer) == ("completed", "o-17: 45")
