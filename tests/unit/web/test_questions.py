"""A person answers a workflow's questions in the dashboard, with the same calls as on the command line."""

from __future__ import annotations

import asyncio
from typing import Any

from support import factory
from support.asgi import event_stream, request
from support.factory import planner_of
from support.waiting import until

from pointsman.authoring.agent import Agent, agent
from pointsman.authoring.context import Context
from pointsman.settings import Settings
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
        dashboard = await Dashboard.open(client, Settings())
        folding = asyncio.create_task(dashboard.run_projections())
        workflow = await client.submit("bank", {"amount": 900})
        await until(client.operations.questions)
        async with event_stream(dashboard.app, "/api/live/questions") as page:
            told = await page.until("questions")
            (question,) = told.data["questions"]
            async with event_stream(dashboard.app, "/api/live/workflows") as rows:
                (row,) = (await rows.until("page")).data["rows"]
            said = await request(
                dashboard.app, "POST", f"/api/questions/{question['id']}/approve", {"input": {"amount": 90}}
            )
            left = await page.until("questions")
        outcome = await workflow.outcome(10)
        again = await request(dashboard.app, "POST", f"/api/questions/{question['id']}/reject", {"reason": "no"})
        unknown = await request(dashboard.app, "POST", "/api/questions/wf_x-1/approve", {})
        odd = await request(dashboard.app, "POST", f"/api/questions/{question['id']}/perhaps", {})
        folding.cancel()

    assert (question["about"], question["agent"], question["input"]) == ("task", "payer", {"amount": 900})
    assert row["status"] == "waiting for an answer"
    assert said.json == {"counted": True, "said": f"{question['id']} is approved"}
    assert (paid, outcome.status, left.data["questions"]) == ([{"amount": 90}], "completed", [])
    assert (again.status, again.json["counted"]) == (200, False)
    assert (unknown.status, odd.status) == (404, 404)


async def test_question_is_listed_with_what_is_known_and_a_wrong_answer_is_refused() -> None:
    @agent(name="payer", description="Pays")
    async def pay(request: dict[str, Any], context: Context) -> str:
        return await context.ask("Which account?", choices=["a", "b"])

    agents = [planner_of({"id": "pay", "agent": "payer", "intent": "pay the bill"}), pay]
    async with factory.team(TEAM, agents) as client:
        dashboard = await Dashboard.open(client, Settings())
        workflow = await client.submit("bank", {"amount": 900})
        await until(client.operations.questions)
        async with event_stream(dashboard.app, "/api/live/questions") as page:
            (question,) = (await page.until("questions")).data["questions"]
        path = f"/api/questions/{question['id']}"
        wrong = await request(dashboard.app, "POST", f"{path}/answer", {"answer": "c"})
        said = await request(dashboard.app, "POST", f"{path}/answer", {"answer": "b"})
        outcome = await workflow.outcome(10)

    assert (question["text"], question["request"], question["known"]) == ("Which account?", {"amount": 900}, [])
    assert question["input_schema"]["enum"] == ["a", "b"]
    assert wrong.status == 422
    assert "'c' is not one of ['a', 'b']" in wrong.json["error"]
    assert said.json == {"counted": True, "said": f"{question['id']} is answered"}
    assert outcome.answer == "b"
