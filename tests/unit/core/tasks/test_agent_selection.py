"""A router selects the agents for a request. An unsure router asks the caller or uses the fallback."""

from __future__ import annotations

from typing import Any

import pytest
from support.core import WorkflowDriver, card, cards, failure, plan, selection, task

from pointsman_schemas.card import Role
from pointsman_schemas.events import Usage
from pointsman_schemas.log import PlanRejected, TaskDispatched
from pointsman_schemas.team import Limits, PlanAndExecute, Router

EXPERTS = cards("legal", "medical", "technical")


def routed(router: Router, answer: Any, **given: Any) -> WorkflowDriver:
    """Start a workflow and deliver the classifier's answer."""
    story = WorkflowDriver(strategy=router, cards=EXPERTS, **given).start()
    story.complete_task("classify-1", answer)
    return story


def test_the_classifier_is_given_the_menu_and_the_threshold() -> None:
    given: Any = WorkflowDriver(strategy=Router(threshold=0.7), cards=EXPERTS).start().handoff("classify-1").input

    assert [item["name"] for item in given["agents"]] == ["legal", "medical", "technical"]
    assert given["threshold"] == 0.7


def test_one_agent_above_the_threshold_answers_by_itself() -> None:
    story = routed(Router(), selection(("legal", 0.9), ("medical", 0.3)))
    story.complete_task("legal", "sue them")

    assert (story.outcome.status, story.outcome.answer) == ("completed", "sue them")
    assert "synthesis" not in story.state.tasks


def test_several_run_side_by_side_and_are_synthesized() -> None:
    story = routed(Router(), selection(("legal", 0.9), ("medical", 0.4)))

    assert story.statuses() == {"legal": "running", "medical": "running"}
    story.complete_task("legal")
    story.complete_task("medical")
    story.complete_task("synthesis", {"answer": "both"})
    assert story.outcome.answer == "both"


def test_unserved_part_is_stated_in_the_answer_of_a_single_agent() -> None:
    story = routed(Router(), {**selection(("legal", 0.9)), "unserved": "write a poem"})

    story.complete_task("legal", "sue them")

    given: Any = story.handoff("synthesis").input
    assert given["final_instruction"] == 'Tell the caller that no agent here can help with: "write a poem".'


def test_a_task_of_a_router_is_given_the_request_with_its_metadata() -> None:
    story = WorkflowDriver(strategy=Router(), cards=EXPERTS).start(
        "who pays?", metadata={"customer": "c-1", "request": "no"}
    )

    story.complete_task("classify-1", selection(("legal", 0.9)))

    assert story.handoff("legal").input == {"customer": "c-1", "request": "who pays?"}


def test_an_agent_that_is_named_twice_is_asked_once() -> None:
    story = routed(Router(), selection(("legal", 0.9), ("legal", 0.8)))

    assert story.statuses() == {"legal": "running"}


def test_an_agent_named_like_a_task_of_the_runtime_can_be_asked() -> None:
    story = WorkflowDriver(strategy=Router(), cards=cards("classify-1")).start()

    story.complete_task("classify-1", selection(("classify-1", 0.9)))

    assert story.statuses() == {"classify-1-2": "running"}


def test_several_escalate_to_a_planner_that_knows_only_them() -> None:
    story = routed(Router(escalate=PlanAndExecute()), selection(("legal", 0.9), ("medical", 0.5), ("technical", 0.1)))

    given: Any = story.handoff("plan-1").input
    assert [item["name"] for item in given["agents"]] == ["legal", "medical"]
    story.complete_task("plan-1", plan(task("a", "legal"), task("b", "medical", needs=["a"])))
    assert story.statuses() == {"a": "running", "b": "waiting"}


def test_repaired_plan_after_an_escalation_has_the_same_short_menu() -> None:
    story = routed(Router(escalate=PlanAndExecute()), selection(("legal", 0.9), ("medical", 0.5)))

    story.complete_task("plan-1", "no idea")

    given: Any = story.handoff("plan-2").input
    assert [item["name"] for item in given["agents"]] == ["legal", "medical"]
    assert given["problems"] == list(story.entries_of(PlanRejected)[0].problems)


def test_escalated_skill_gives_the_planner_all_agents_that_have_it() -> None:
    able = (card("legal"), card("hasty", skills=("translation",)), card("careful", skills=("translation",)))
    story = WorkflowDriver(strategy=Router(escalate=PlanAndExecute()), cards=(*able, card("other"))).start()

    story.complete_task(
        "classify-1", {"agents": [{"skill": "translation", "confidence": 0.8}, *selection(("legal", 0.9))["agents"]]}
    )

    given: Any = story.handoff("plan-1").input
    assert [item["name"] for item in given["agents"]] == ["legal", "hasty", "careful"]


def escalated(**limits: Any) -> WorkflowDriver:
    chosen = selection(("legal", 0.9), ("medical", 0.5))
    story = routed(Router(escalate=PlanAndExecute(), synthesizer=None), chosen, limits=Limits(**limits))
    story.complete_task("plan-1", plan(task("a", "legal"), task("b", "medical")))
    return story


def test_escalated_workflow_is_replanned_after_a_failure_with_the_same_menu() -> None:
    story = escalated(replans=1)

    story.fail_task("a")
    story.complete_task("b")

    given: Any = story.handoff("plan-2").input
    assert given["replan_reason"] == "legal could not do a"
    assert [item["name"] for item in given["agents"]] == ["legal", "medical"]
    story.complete_task("plan-2", plan(task("c", "medical")))
    story.complete_task("c", "done")
    assert (story.outcome.status, story.outcome.gaps[0].task_id) == ("partial", "a")
    assert story.outcome.reason == "the limit of 1 re-plans is used up"


def test_escalated_workflow_is_replanned_after_a_hint() -> None:
    story = escalated(replans=1)

    story.complete_task("a", replan_hint="it is for a doctor")

    given: Any = story.handoff("plan-2").input
    assert given["replan_reason"] == "legal suggests a new plan: it is for a doctor"


def test_unplanned_workflow_is_not_replanned() -> None:
    story = routed(Router(escalate=PlanAndExecute()), selection(("legal", 0.9)), limits=Limits(replans=1))

    story.fail_task("legal")

    assert (story.outcome.status, "plan-1" in story.state.tasks) == ("failed", False)


def test_classifier_text_for_an_agent_is_its_intent() -> None:
    story = routed(Router(), {"agents": [{"agent": "legal", "confidence": 0.9, "intent": "Read the lease"}]})

    assert story.handoff("legal").intent == "Read the lease"


def test_one_sure_agent_does_not_escalate() -> None:
    story = routed(Router(escalate=PlanAndExecute()), selection(("legal", 0.9)))

    assert story.statuses() == {"legal": "running"}


@pytest.mark.parametrize(
    "answer",
    [selection(("legal", 0.3)), selection(("ghost", 0.9)), selection(), "legal, I think", None],
    ids=["unsure", "unknown agent", "nobody", "plain text", "empty"],
)
def test_fallback_serves_an_unclear_request(answer: Any) -> None:
    story = WorkflowDriver(strategy=Router(fallback="technical"), cards=EXPERTS).start()
    story.decide_and_apply(story.result("classify-1", answer))

    assert story.statuses() == {"technical": "running"}


@pytest.mark.parametrize(
    ("request_", "intent"),
    [
        (" Is it broken? ", "Is it broken?"),
        ("x" * 501, "Serve the request"),
        ("  ", "Serve the request"),
        ({"a": 1}, "Serve the request"),
    ],
)
def test_fallback_intent_is_the_request(request_: Any, intent: str) -> None:
    story = WorkflowDriver(strategy=Router(fallback="technical"), cards=EXPERTS).start(request_)

    story.complete_task("classify-1", selection())

    assert story.handoff("technical").intent == intent


@pytest.mark.parametrize("agents", ["*", ("legal", "desk")])
def test_the_fallback_may_be_a_team_and_with_it_any_strategy(agents: Any) -> None:
    desk = card("desk", team=True)
    story = WorkflowDriver(strategy=Router(fallback="desk"), cards=(*EXPERTS, desk), agents=agents).start("who pays?")
    menu: Any = story.handoff("classify-1").input

    story.complete_task("classify-1", selection(("legal", 0.1)))
    story.complete_task("desk", "the other side")

    assert ("desk" in [item["name"] for item in menu["agents"]]) is (agents != "*")
    assert [(each.agent, each.team) for each in story.entries_of(TaskDispatched)] == [
        ("classifier", False),
        ("desk", True),
    ]
    assert (story.outcome.status, story.outcome.answer) == ("completed", "the other side")


@pytest.mark.parametrize("kind", ["invalid_output", "refused"])
def test_the_fallback_serves_when_the_classifier_fails(kind: str) -> None:
    story = WorkflowDriver(strategy=Router(fallback="technical"), cards=EXPERTS).start()

    story.fail_task("classify-1", failure(kind))
    story.complete_task("technical", "reboot")

    assert (story.outcome.status, story.outcome.answer) == ("completed", "reboot")


def test_a_classifier_that_fails_without_a_fallback_ends_the_workflow() -> None:
    story = WorkflowDriver(strategy=Router(), cards=EXPERTS).start()

    story.fail_task("classify-1")

    assert story.outcome.reason == "classifier could not classify: provider_error was seen"


def test_unsure_router_without_a_fallback_asks_back() -> None:
    story = routed(Router(), selection(("legal", 0.3), question="Is it about a contract?"))

    assert (story.outcome.status, story.outcome.answer) == ("failed", "Is it about a contract?")
    assert story.outcome.reason == "no agent was selected with enough confidence"


def test_unsure_router_without_a_question_explains_itself() -> None:
    assert "Say more precisely what you need." in str(routed(Router(), selection()).outcome.answer)


def test_a_fallback_that_is_not_alive_is_no_fallback() -> None:
    story = routed(Router(fallback="ghost"), selection(("legal", 0.1)))

    assert story.outcome.reason == "no agent was selected with enough confidence"


def test_unreadable_classification_is_repaired_a_bounded_number_of_times() -> None:
    story = routed(Router(), "hm", limits=Limits(plan_repairs=1))
    assert story.state.tasks["classify-2"].role is Role.CLASSIFY

    story.complete_task("classify-2", "hm")

    assert story.outcome.reason.startswith("no valid plan after 2 tries")


def test_an_orchestration_agent_is_never_chosen() -> None:
    story = WorkflowDriver(strategy=Router(), cards=(*EXPERTS, card("judge", role=Role.SYNTHESIZE))).start()

    story.complete_task("classify-1", selection(("judge", 1.0)))

    assert story.outcome.status == "failed"


def test_agents_named_like_the_runtimes_own_tasks_have_a_task_each() -> None:
    names = ("classify-1", "classify-1-2", "y" * 64)
    story = WorkflowDriver(strategy=Router(), cards=cards(*names)).start()

    story.complete_task("classify-1", selection(*((name, 0.9) for name in names)))

    assert [task.agent for task in story.state.plan_tasks()] == list(names)


@pytest.mark.parametrize(("chosen", "given"), [(("legal",), [9]), (("legal", "tax"), [4, 4])])
def test_budget_is_reserved_only_for_an_answer_that_is_written(chosen: tuple[str, ...], given: list[int]) -> None:
    story = WorkflowDriver(strategy=Router(), cards=cards("legal", "tax"), limits=Limits(calls=10)).start()

    story.complete_task("classify-1", selection(*((name, 0.9) for name in chosen)), usage=Usage(calls=1))

    assert [budget.calls for name in chosen if (budget := story.handoff(name).budget)] == given
