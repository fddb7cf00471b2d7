"""The customer-service team with the offline model gives different requests different and correct answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, JsonValue

from pointsman.authoring.context import Context
from pointsman.authoring.llm_agent import LLMAgent
from pointsman.authoring.ports import RecordingReporter
from pointsman.errors import RefusedError, TaskError
from pointsman.llm.offline.model import OfflineModel
from pointsman.llm.offline.words import OFFLINE_NOTE
from pointsman_agents.classifier import classifier
from pointsman_agents.customer_service import SAMPLE_REQUEST, team
from pointsman_agents.customer_service.account import account, account_state, send_reset_link
from pointsman_agents.customer_service.back_office import back_office
from pointsman_agents.customer_service.billing import billing, find_charges, request_refund, subscription
from pointsman_agents.customer_service.technical import rate_limits, service_status, technical
from pointsman_agents.planner import planner
from pointsman_agents.synthesizer import synthesizer
from pointsman_schemas.events import Gap, TaskReport
from pointsman_schemas.plan import Plan, Selection
from pointsman_schemas.role_io import AvailableAgent, ClassifierInput, PlannerInput, SynthesizerInput
from pointsman_schemas.strict_json import as_json_value

AGENTS = {agent._card.name: agent for agent in (billing, technical, account)}
ROLES = (planner, classifier, synthesizer)


@pytest.fixture(autouse=True)
def _fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give each test a new back office and all agents the offline model."""
    monkeypatch.setenv("POINTSMAN_CUSTOMER_SERVICE_DATA", str(tmp_path / "data"))
    agents = (*AGENTS.values(), *ROLES)
    for agent in agents:
        vars(agent)["models"] = (OfflineModel(),)
    yield
    for agent in agents:
        del vars(agent)["models"]


async def hand(
    agent: LLMAgent, intent: str, input: JsonValue, results: tuple[TaskReport, ...] = (), used: list[str] | None = None
) -> Any:
    reporter = RecordingReporter()
    context = Context.for_test(input, agent=agent.card.name, intent=intent, results=results, reporter=reporter)
    try:
        return await agent.run(context.handoff, context)
    finally:
        if used is not None:
            used += [report.name for report in reporter.reports if report.kind == "tool"]


def data(model: BaseModel) -> JsonValue:
    return as_json_value(model)


def menu() -> tuple[AvailableAgent, ...]:
    cards = [AGENTS[name].card for name in team.agents]
    return tuple(
        AvailableAgent.model_validate(card.model_dump(include=set(AvailableAgent.model_fields) - {"input_schema"}))
        for card in cards
    )


async def serve(request: str, metadata: dict[str, JsonValue] | None = None) -> tuple[Plan, str, list[str]]:
    """Return the plan, the answer and the used tools for `request`."""
    asked = PlannerInput(request=request, metadata=metadata or {}, agents=menu())
    plan = Plan.model_validate(await hand(planner, "plan", data(asked)))
    used: list[str] = []
    reports: list[TaskReport] = []
    gaps: list[Gap] = []
    for task in plan.tasks:
        report = TaskReport(task_id=task.id, agent=task.agent, intent=task.intent, status="succeeded")
        try:
            given = {**(metadata or {}), "request": request} if task.input is None else task.input
            output = await hand(AGENTS[task.agent], task.intent, given, used=used)
            reports.append(report.model_copy(update={"output": output}))
        except RefusedError as error:
            reports.append(report.model_copy(update={"status": "failed"}))
            gaps.append(Gap(task_id=task.id, agent=task.agent, reason=str(error)))
    told = SynthesizerInput(
        request=request, final_instruction=plan.final_instruction, limit=plan.cannot, gaps=tuple(gaps)
    )
    answer = await hand(synthesizer, "synthesize", data(told), tuple(reports))
    return plan, answer["answer"], used


async def test_the_sample_request_is_three_tasks_side_by_side_and_one_answer() -> None:
    plan, answer, used = await serve(SAMPLE_REQUEST)

    assert {task.agent: task.intent for task in plan.tasks} == {
        "technical": "My API calls are failing with a 429 error",
        "billing": "I was charged twice",
        "account": "I can't log into my account",
    }
    assert all(task.depends_on == () for task in plan.tasks)
    assert sorted(used) == [
        "account_state",
        "find_charges",
        "rate_limits",
        "request_refund",
        "send_reset_link",
        "service_status",
    ]
    for said in ("inc-301", "allows 100 requests", "ch-5003", "rf-5003 of $49.00", "locked", "c-***@customers.example"):
        assert said in answer
    assert answer.count(OFFLINE_NOTE) == 1


async def test_the_sample_request_is_three_domains_for_the_classifier() -> None:
    selection = Selection.model_validate(
        await hand(classifier, "classify", data(ClassifierInput(request=SAMPLE_REQUEST, agents=menu())))
    )

    assert {found.agent for found in selection.agents if found.confidence >= 0.4} == {"billing", "technical", "account"}


@pytest.mark.parametrize(
    ("request_", "agents", "said", "tools"),
    [
        ("I was charged twice", ["billing"], ["ch-5003", "rf-5003"], ["find_charges", "request_refund"]),
        ("is the service down?", ["technical"], ["inc-301"], ["service_status"]),
        ("I forgot my password", ["account"], ["reset link was sent"], ["send_reset_link"]),
        ("How much is my plan?", ["billing"], ["$49.00 a month"], ["subscription"]),
        ("Show me my charges", ["billing"], ["ch-5001"], ["find_charges"]),
        ("What is my rate limit?", ["technical"], ["100 requests"], ["rate_limits"]),
        ("Is account C-1003 suspended?", ["account"], ["unpaid invoice"], ["account_state"]),
        ("I am C-1002 and was charged twice", ["billing"], ["rf-5012 (paid)"], ["find_charges"]),
        ("Refund ch-5001", ["billing"], ["waits for a person"], ["request_refund"]),
        ("I need a copy of my invoice", ["billing"], ["may not be what was asked", "'copy'"], ["find_charges"]),
        ("What did C-9999 pay?", ["billing"], ["there is no customer C-9999"], ["find_charges"]),
    ],
)
async def test_another_request_gets_another_and_right_answer(
    request_: str, agents: list[str], said: list[str], tools: list[str]
) -> None:
    plan, answer, used = await serve(request_)

    assert [task.agent for task in plan.tasks] == agents
    assert used == tools
    for text in said:
        assert text in answer


@pytest.mark.parametrize(
    "request_",
    [
        "write me a poem about the sea",
        "How many varroa mites are in my hives?",
        "How many legs does a spider have?",
        "Who won the world cup last year?",
        "Which books should I read this month?",
        "Play some music by mistake",
        "What does my grandmother's last letter say?",
    ],
)
async def test_unrelated_request_is_answered_as_such(request_: str) -> None:
    plan, answer, used = await serve(request_)

    assert (plan.tasks, used) == ((), [])
    assert answer.startswith("I could not help with this request: ")
    assert "no agent here can help" in answer


async def test_charges_are_read_for_the_customer_of_the_metadata() -> None:
    _, answer, _ = await serve("I was charged twice", {"customer_id": "C-1002"})

    assert "ch-5012" in answer
    assert "ch-5003" not in answer


async def test_a_refund_is_made_once_however_often_the_task_is_tried() -> None:
    texts = [await hand(billing, "I was charged twice", {"request": "I was charged twice"}) for _ in range(2)]

    with back_office() as office:
        count = office.execute("SELECT COUNT(*) FROM refunds WHERE charge = 'ch-5003'").fetchone()[0]
    assert count == 1
    assert "rf-5003 of $49.00 for charge ch-5003 is requested" in texts[0]
    assert "the refund is rf-5003 (requested)" in texts[1]


async def test_refund_with_a_repeated_key_is_answered_as_the_first_time() -> None:
    async def refund(context: Context) -> str:
        result = await request_refund.call('{"charge_id": "ch-5003", "reason": "twice"}', context)
        return str(json.loads(result.text)["summary"])

    first, again = await refund(Context.for_test()), await refund(Context.for_test())
    other = await refund(Context.for_test(idempotency_key="another task"))

    assert first == again
    assert "is requested" in first
    assert "refunded before" in other


async def test_refunds_at_the_same_moment_are_one_refund() -> None:
    contexts = [Context.for_test(idempotency_key=f"task {number}") for number in range(8)]
    results = await asyncio.gather(
        *(request_refund.call('{"charge_id": "ch-5003", "reason": "twice"}', context) for context in contexts)
    )

    told = [json.loads(result.text)["summary"] for result in results]
    assert sum("is requested" in text for text in told) == 1
    assert sum("refunded before" in text for text in told) == 7


def test_the_back_office_is_seeded_once_and_kept(tmp_path: Path) -> None:
    find_charges()
    with back_office() as office:
        office.execute("DELETE FROM reset_links")
        office.execute("INSERT INTO refunds VALUES ('ch-5001', 'rf-5001', 'paid', 'x', 'y')")
    from pointsman_agents.customer_service import back_office as module

    module._seed.cache_clear()

    assert "rf-5001 (paid)" in [charge.refund for charge in find_charges().charges]


def test_a_process_without_a_directory_has_one_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POINTSMAN_CUSTOMER_SERVICE_DATA")

    assert find_charges().customer_id == "C-1001"


def test_the_status_page_can_be_changed_by_its_file(tmp_path: Path) -> None:
    before = service_status()
    page = tmp_path / "data" / "status.json"
    page.write_text(json.dumps({"updated": "now", "components": {"api": "operational"}, "incidents": []}))

    assert "inc-301" in before.summary
    assert service_status().summary == "All components are operational, and there is no open incident."


async def test_tools_report_missing_data_and_never_show_an_address() -> None:
    with pytest.raises(TaskError, match="C-9999"):
        subscription("C-9999")
    suspended = send_reset_link(Context.for_test(), "C-1003")

    assert not suspended.sent
    assert "unpaid invoice" in suspended.summary
    assert rate_limits("C-1002").summary.endswith("your own traffic is not the cause.")
    assert subscription("C-1003").monthly_price == "$0.00"
    assert "c-1001@" not in account_state("C-1001").model_dump_json()
    result = await find_charges.call('{"customer_id": "C-1001; DROP TABLE charges"}', Context.for_test())
    assert result.is_error


def test_the_team_names_the_agents_it_ships() -> None:
    assert team.name == "customer-service"
    assert set(team.agents) == set(AGENTS)
