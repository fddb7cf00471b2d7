"""A person answers in the dashboard what a workflow asks, by the same calls as on the command line."""

from __future__ import annotations

import asyncio
from typing import Any

from support import factory
from support.asgi import event_stream, request
from support.factory import planner_of
from support.waiting import until

from pointsman.authoring.agent import Agent, agent
from pointsman.web.dashboard import Dashboard
from pointsman_schemas.team import PlanAndExecute, Team

TEAM = Team(name="bank", strategy=PlanAndExecute(synthesizer=None))


def payer(paid: list[Any]) -> Agent:
    @agent(name="payer", description="Pays", approval="required")
    async def pay(request: dict[str, Any]) -> str:
        paid.append(request)
        return "paid"

    return pay


async def test_approval_is_listed_and_an_edited_answer_continues_the_workflow() -> None:
    paid: list[Any] = []
    agents = [planner_of({"id": "pay", "agent": "payer", "intent": "pay the bill"}), payer(paid)]
    async with factory.team(TEAM, agents) as client:
        dashboard = Dashboard(client)
        folding = asyncio.create_task(dashboard.run_projections())
        workflow = await client.submit("bank", {"amount": 900})
        await until(client.operations.approvals)
        async with event_stream(dashboard.app, "/api/live/approvals") as page:
            told = await page.until("approvals")
            (question,) = told.data["approvals"]
            async with event_stream(dashboard.app, "/api/live/workflows") as rows:
                (row,) = (await rows.until("page")).data["rows"]
            said = await request(
                dashboard.app, "POST", f"/api/approvals/{question['id']}/approve", {"input": {"amount": 90}}
            )
            left = await page.until("approvals")
        outcome = await workflow.outcome(10)
        again = await request(dashboard.app, "POST", f"/api/approvals/{question['id']}/reject", {"reason": "no"})
        unknown = await request(dashboard.app, "POST", "/api/approvals/wf_x-1/approve", {})
        odd = await request(dashboard.app, "POST", f"/api/approvals/{question['id']}/perhaps", {})
        folding.cancel()

    assert (question["about"], question["agent"], question["input"]) == ("task", "payer", {"amount": 900})
    assert row["status"] == "waiting for approval"
    assert said.json == {"counted": True, "said": f"{question['id']} is approved"}
    assert (paid, outcome.status, left.data["approvals"]) == ([{"amount": 90}], "completed", [])
    assert (again.status, again.json["counted"]) == (200, False)
    assert (unknown.status, odd.status) == (404, 404)
