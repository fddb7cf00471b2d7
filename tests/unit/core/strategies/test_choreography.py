"""In a choreography, agents react to events, and each reaction is a task. The workflow ends by silence or an event."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from support.core import T0, WorkflowDriver, card, failure

from pointsman.core.model.agent_health import Circuit
from pointsman_schemas.events import Budget, Usage
from pointsman_schemas.log import LimitReached, PlanAccepted
from pointsman_schemas.team import Choreography, Limits

DANCERS = (
    card("verify", reacts_to=("requested",)),
    card("policy", reacts_to=("charge_verified",)),
    card("fraud", reacts_to=("refund_eligible",)),
    card("notify", reacts_to=("refund_eligible",)),
)


def begun(strategy: Choreography | None = None, **given: Any) -> WorkflowDriver:
    return WorkflowDriver(strategy=strategy or Choreography(), cards=DANCERS, **given).start({"charge": 7})


def emit(story: WorkflowDriver, task_id: str, *events: tuple[str, Any]) -> None:
    story.complete_task(task_id, events=[{"name": name, "data": data} for name, data in events])


def test_the_request_is_the_first_event_and_its_data_the_input() -> None:
    handoff = begun().handoff("verify-requested")

    assert (handoff.to_agent, handoff.event, handoff.input) == ("verify", "requested", {"charge": 7})


def test_event_starts_a_task_for_each_reacting_agent_in_parallel() -> None:
    story = begun()
    emit(story, "verify-requested", ("charge_verified", {"duplicate": True}))
    emit(story, "policy-charge_verified", ("refund_eligible", {"amount": 49}))

    assert story.statuses() == {
        "verify-requested": "succeeded",
        "policy-charge_verified": "succeeded",
        "fraud-refund_eligible": "running",
        "notify-refund_eligible": "running",
    }
    handoff = story.handoff("notify-refund_eligible")
    assert (handoff.input, handoff.event) == ({"amount": 49}, "refund_eligible")
    assert [report.task_id for report in handoff.context] == ["policy-charge_verified"]


def test_two_reactions_with_long_similar_names_have_a_task_each() -> None:
    names = ("x" * 63 + "a", "x" * 63 + "b")
    event = "e" * 64
    dancers = tuple(card(name, reacts_to=(event,)) for name in names)

    story = WorkflowDriver(strategy=Choreography(start_event=event), cards=dancers).start()

    assert [task.agent for task in story.state.plan_tasks()] == list(names)


def test_a_held_reaction_is_not_lost_at_the_next_event() -> None:
    story = WorkflowDriver(
        strategy=Choreography(start_event="a"),
        cards=(card("well", reacts_to=("a", "b")), card("ill", reacts_to=("a",))),
    )
    story.circuits = {"ill": Circuit(since=T0, until=T0 + timedelta(seconds=5))}
    story.start()
    emit(story, "well-a", ("b", None))
    assert story.statuses() == {"well-a": "succeeded", "ill-a": "held", "well-b": "running"}

    story.fire_timer()

    assert story.statuses()["ill-a"] == "running"


def test_reaction_waiting_for_budget_survives_the_next_event() -> None:
    cards = (card("one", reacts_to=("a", "b")), card("two", reacts_to=("a",)))
    story = WorkflowDriver(
        strategy=Choreography(start_event="a", synthesizer=None), cards=cards, limits=Limits(calls=1)
    ).start()
    assert story.statuses() == {"one-a": "running", "two-a": "awaiting_budget"}

    story.complete_task("one-a", usage=Usage(), events=[{"name": "b", "data": None}])

    assert [story.task(name).budget for name in ("two-a", "one-b")].count(Budget(calls=1)) == 1
    assert sorted(story.statuses().values()) == ["awaiting_budget", "running", "succeeded"]


def test_agent_that_always_needs_approval_reacts_once_approved() -> None:
    cards = (card("payer", reacts_to=("a",), approval="required"), card("one", reacts_to=("a", "b")))
    story = WorkflowDriver(strategy=Choreography(start_event="a"), cards=cards).start()
    emit(story, "one-a", ("b", None))
    assert story.statuses()["payer-a"] == "awaiting_answer"

    story.control("approve", question="wf_1-q1")

    assert story.statuses()["payer-a"] == "running"


def test_too_many_reactions_take_back_no_question_about_one_that_waits() -> None:
    cards = (card("payer", reacts_to=("a",), approval="required"), card("one", reacts_to=("a", "b")))
    story = WorkflowDriver(strategy=Choreography(start_event="a"), cards=cards, limits=Limits(tasks=2)).start()
    emit(story, "one-a", ("b", None))
    assert story.entries_of(LimitReached)

    story.control("approve", question="wf_1-q1")

    assert story.statuses()["payer-a"] == "running"


def test_a_choreography_ends_when_no_agent_reacts() -> None:
    story = begun()
    emit(story, "verify-requested", ("nobody_cares", None))

    assert (story.outcome.status, story.outcome.answer) == ("completed", {"from": "verify-requested"})


def test_a_terminal_event_ends_it_at_once_with_its_data() -> None:
    story = begun(Choreography(end_events=("refunded",)))
    emit(story, "verify-requested", ("charge_verified", {}))

    emit(story, "policy-charge_verified", ("refund_eligible", {}), ("refunded", {"amount": 49}))

    assert (story.outcome.status, story.outcome.answer) == ("completed", {"amount": 49})
    assert story.outcome.reason == "the event refunded ended it"
    assert story.statuses()["fraud-refund_eligible"] == "abandoned"


def test_redelivered_result_causes_no_reaction() -> None:
    story = begun()
    result = story.result("verify-requested", events=[{"name": "charge_verified"}])

    story.decide_and_apply(result)
    story.decide_and_apply(result, result)

    assert list(story.statuses()) == ["verify-requested", "policy-charge_verified"]


def test_an_event_that_comes_twice_is_reacted_to_twice() -> None:
    story = begun()

    emit(story, "verify-requested", ("charge_verified", 1), ("charge_verified", 2))

    assert list(story.statuses())[1:] == ["policy-charge_verified", "policy-charge_verified-2"]
    assert story.handoff("policy-charge_verified-2").input == 2


def test_results_that_arrive_together_lose_no_reaction() -> None:
    story = begun()
    emit(story, "verify-requested", ("refund_eligible", 1))

    story.decide_and_apply(
        story.result("fraud-refund_eligible", events=[{"name": "charge_verified", "data": "a"}]),
        story.result("notify-refund_eligible", events=[{"name": "charge_verified", "data": "b"}]),
    )

    assert story.handoff("policy-charge_verified").input == "a"
    assert story.handoff("policy-charge_verified-2").input == "b"


def test_an_attempt_that_failed_has_emitted_nothing() -> None:
    story = begun()

    story.fail_task("verify-requested", failure("refused"), events=[{"name": "charge_verified"}])

    assert story.outcome.status == "failed"
    assert list(story.statuses()) == ["verify-requested"]


def test_events_that_go_in_circles_end_at_the_limit_of_tasks() -> None:
    story = WorkflowDriver(
        strategy=Choreography(start_event="ping"), cards=(card("pong", reacts_to=("ping",)),), limits=Limits(tasks=3)
    ).start()
    for name in ("pong-ping", "pong-ping-2", "pong-ping-3"):
        emit(story, name, ("ping", None))

    assert story.entries_of(LimitReached)[0].limit == "tasks"
    assert (story.outcome.status, len(story.outcome.tasks)) == ("partial", 3)
    assert story.outcome.reason == "the limit of 3 tasks was passed: ping would make 4"


def test_request_with_more_reactions_than_tasks_ends_at_that_limit() -> None:
    cards = (card("one", reacts_to=("a",)), card("two", reacts_to=("a",)))

    story = WorkflowDriver(strategy=Choreography(start_event="a"), cards=cards, limits=Limits(tasks=1)).start()

    assert [entry.limit for entry in story.entries_of(LimitReached)] == ["tasks"]
    assert story.outcome.status == "failed"
    assert story.outcome.reason == "the limit of 1 tasks was passed: a would make 2"


def test_request_without_a_reaction_fails_at_once() -> None:
    names = tuple(dancer.name for dancer in DANCERS)
    story = WorkflowDriver(strategy=Choreography(start_event="nothing"), cards=DANCERS, agents=names).start()

    assert story.outcome.reason == "no live agent of the team reacts to the event nothing"


def test_only_agents_of_the_team_react() -> None:
    assert list(begun(agents=("verify", "policy")).statuses()) == ["verify-requested"]
    story = WorkflowDriver(strategy=Choreography(), cards=DANCERS, agents=("policy",)).start()
    assert story.outcome.status == "failed"


def test_log_names_the_agent_and_the_event_of_each_reaction() -> None:
    story = begun()
    emit(story, "verify-requested", ("charge_verified", {}))

    plans = story.entries_of(PlanAccepted)
    assert [plan.revision for plan in plans] == [1, 2]
    assert [(task.agent, plan.event, task.intent) for plan in plans for task in plan.plan.tasks] == [
        ("verify", "requested", "React to requested"),
        ("policy", "charge_verified", "React to charge_verified from verify"),
    ]


def test_an_answer_can_be_written_of_it() -> None:
    story = begun(Choreography(synthesizer="synthesizer"))
    emit(story, "verify-requested")

    assert story.handoff("synthesis").to_agent == "synthesizer"
