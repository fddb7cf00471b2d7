"""A task with a skill goes to the agent with the earliest expected end."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from pydantic import ValidationError
from support.core import T0, WorkflowDriver, card, failure, plan, task

from pointsman.core.model.agent_health import Circuit, Load
from pointsman.core.replay.replayer import replay_log
from pointsman.core.views.trace import build_trace
from pointsman_schemas.events import Usage
from pointsman_schemas.log import PlanAccepted, PlanRejected, RetryScheduled, TaskDispatched, TaskHeld
from pointsman_schemas.plan import SelectedAgent
from pointsman_schemas.team import FanOut, Limits, Pipeline, PlanAndExecute, Router, Stage, Team

CARDS = (card("quick", skills=("translation",)), card("slow", skills=("translation", "poetry")), card("other"))


def story(**given: Any) -> WorkflowDriver:
    return WorkflowDriver(**{"cards": CARDS, "refiner": None, "strategy": PlanAndExecute(synthesizer=None), **given})


def asked(*ids: str, skill: str = "translation") -> list[dict[str, Any]]:
    return [task(name, skill=skill) for name in ids]


def got(story: WorkflowDriver) -> dict[str, str]:
    """Return the first agent that got each task of the plan."""
    return {
        entry.task_id: entry.agent for entry in reversed(story.entries_of(TaskDispatched)) if entry.task_id != "plan-1"
    }


def test_the_idle_agent_gets_the_work() -> None:
    busy = story(loads={"quick": Load(queued=9, seconds=1.0), "slow": Load(queued=0, seconds=1.0)})

    busy.planned(*asked("t1"))

    assert got(busy) == {"t1": "slow"}
    assert busy.handoff("t1").to_agent == "slow"


def test_the_slower_of_two_gets_less() -> None:
    uneven = story(loads={"quick": Load(seconds=1.0), "slow": Load(seconds=1.5)})

    uneven.planned(*asked(*(f"t{number}" for number in range(20))))

    shares = Counter(got(uneven).values())
    assert shares["quick"] > shares["slow"] > 0


def test_the_quicker_of_two_idle_agents_gets_the_work() -> None:
    idle = story(loads={"quick": Load(seconds=1.5), "slow": Load(seconds=1.0)})

    assert got(idle.planned(*asked("t1"))) == {"t1": "slow"}


def test_equal_agents_take_turns() -> None:
    even = story().planned(*asked("t1", "t2", "t3", "t4"))

    assert got(even) == {"t1": "quick", "t2": "slow", "t3": "quick", "t4": "slow"}


def test_an_agent_with_more_slots_gets_more_tasks() -> None:
    cards = (
        card("quick", skills=("translation",), concurrency=6),
        card("slow", skills=("translation",), concurrency=2),
    )
    uneven = story(cards=cards).planned(*asked(*(f"t{number}" for number in range(16))))

    assert Counter(got(uneven).values()) == {"quick": 12, "slow": 4}


def test_replicas_of_an_agent_take_more_than_one_does() -> None:
    cards = tuple(card(name, skills=("translation",), concurrency=1) for name in ("quick", "quick", "quick", "slow"))
    uneven = story(cards=cards).planned(*asked(*(f"t{number}" for number in range(8))))

    assert Counter(got(uneven).values()) == {"quick": 6, "slow": 2}


def test_agent_of_unknown_speed_counts_as_fast_as_the_fastest() -> None:
    cards = tuple(card(name, skills=("translation",), concurrency=1) for name in ("quick", "slow", "third"))
    loads = {"quick": Load(queued=3, seconds=1.0), "slow": Load(seconds=3.0), "third": Load(queued=1)}

    assert got(story(cards=cards, loads=loads).planned(*asked("t1"))) == {"t1": "third"}


@pytest.mark.parametrize("ahead", [0, 1])
def test_an_agent_of_unknown_speed_is_tried(ahead: int) -> None:
    new = story(loads={"quick": Load(queued=ahead, seconds=1.0), "slow": Load()})

    new.planned(*asked("t1"))

    assert got(new) == {"t1": "slow"}


def test_an_agent_that_is_gone_is_not_chosen() -> None:
    left = story(loads={"quick": Load(seconds=0.1), "slow": Load(seconds=9.0)})
    left.start()
    left.cards = CARDS[1:]
    left.complete_task("plan-1", plan(*asked("t1")))

    assert got(left) == {"t1": "slow"}


def test_agent_for_a_skill_is_chosen_when_its_task_starts() -> None:
    later = story(loads={"slow": Load(queued=9)})
    later.planned(task("t1", "other"), {**task("t2", needs=["t1"], skill="translation")})
    (accepted,) = later.entries_of(PlanAccepted)
    assert (accepted.plan.tasks[1].agent, accepted.plan.tasks[1].skill) == ("quick", "translation")

    later.loads = {"quick": Load(queued=9)}
    later.complete_task("t1")

    assert got(later)["t2"] == "slow"


def test_task_of_a_missing_skill_waits_for_its_last_agent() -> None:
    alone = story().planned(task("t1", "other"), task("t2", needs=["t1"], skill="translation"))

    alone.cards = (card("other"),)
    alone.complete_task("t1")

    assert got(alone)["t2"] == "quick"


def test_a_failed_attempt_is_made_again_by_another_at_once() -> None:
    shaky = story().planned(*asked("t1"))
    shaky.fail_task("t1", failure(retryable=True))

    (retry,) = shaky.entries_of(RetryScheduled)
    assert (retry.agent, retry.not_before) == ("slow", retry.at)
    assert retry.reason == "attempt 1 failed: provider_error; slow has the skill, too"

    shaky.fail_task("t1", failure(retryable=True))
    assert [entry.agent for entry in shaky.entries_of(RetryScheduled)] == ["slow", "quick"]
    shaky.fail_task("t1", failure(retryable=True))
    assert shaky.statuses() == {"t1": "failed"}, "the limit of attempts counts for the task, not for each agent"


def test_the_only_one_with_the_skill_is_tried_again_after_a_pause() -> None:
    alone = story().planned(*asked("t1", skill="poetry"))
    alone.fail_task("t1", failure(retryable=True))

    (retry,) = alone.entries_of(RetryScheduled)
    assert retry.agent == "slow"
    assert retry.not_before > retry.at


@pytest.mark.parametrize(("ill", "who"), [("", "slow"), ("slow", "quick")])
def test_retry_that_waited_for_budget_keeps_its_chosen_healthy_agent(ill: str, who: str) -> None:
    played = story(limits=Limits(calls=3)).planned(*asked("t1"), task("t2", "other"))
    assert got(played)["t1"] == "quick"
    played.fail_task("t1", failure(retryable=True))
    assert played.statuses()["t1"] == "awaiting_budget"

    played.circuits = {ill: Circuit(since=T0, until=T0 + timedelta(seconds=60))} if ill else {}
    played.complete_task("t2", usage=Usage())

    assert played.handoff("t1").to_agent == who


def test_answered_approval_continues_with_its_agent_although_another_is_idle() -> None:
    played = story().planned(*asked("t1"))
    played.fail_task("t1", questions=[{"tool": "pay", "arguments": {"amount": 9}}])
    played.loads = {"quick": Load(queued=99)}
    played.control("approve", question=next(iter(played.state.questions)))

    assert played.handoff("t1").to_agent == "quick"


def test_failing_agent_gets_one_task_as_its_probe() -> None:
    ill = story(circuits={"quick": Circuit(since=T0, until=T0)})
    ill.wait(-1)
    ill.planned(*asked("t1", "t2"))
    assert set(got(ill).values()) == {"slow"}

    well = story(circuits={"quick": Circuit(since=T0, until=T0)}, loads={"quick": Load(queued=99)})
    well.planned(*asked("t1", "t2"))
    assert got(well) == {"t1": "quick", "t2": "slow"}


def test_task_is_held_while_all_agents_of_its_skill_fail() -> None:
    ill = Circuit(since=T0, until=T0.replace(second=8))
    all_ill = story(circuits={"quick": ill, "slow": ill}).planned(*asked("t1"))

    assert all_ill.statuses() == {"t1": "held"}
    all_ill.circuits = {"quick": ill}
    all_ill.loads = {"slow": Load(queued=50)}
    all_ill.wait(-3).fire_timer()
    assert all_ill.statuses() == {"t1": "running"}


def test_unknown_skill_is_a_problem_of_the_plan() -> None:
    wrong = story(limits=Limits(plan_repairs=1)).planned(*asked("t1", skill="juggling"))

    (refused,) = wrong.entries_of(PlanRejected)
    assert refused.problems == ("task 't1' asks for the skill 'juggling', which is not one of: poetry, translation",)


def test_a_task_that_names_an_agent_goes_to_that_agent() -> None:
    named = story(loads={"quick": Load(queued=99)})
    named.planned({**task("t1", "quick"), "skill": "translation"})

    assert got(named) == {"t1": "quick"}
    named.fail_task("t1", failure(retryable=True))
    assert named.entries_of(RetryScheduled)[0].agent == "quick"


def test_an_agent_that_the_team_may_not_use_is_not_chosen() -> None:
    narrow = story(agents=("slow", "other"), loads={"slow": Load(queued=99)}).planned(*asked("t1"))

    assert got(narrow) == {"t1": "slow"}


def test_agent_choice_replays_from_the_recorded_loads() -> None:
    played = story(loads={"quick": Load(queued=3), "slow": Load(seconds=0.5)})
    played.planned(*asked("t1", "t2", "t3"))
    played.fail_task("t1", failure(retryable=True))
    played.loads = {}
    for name in ("t3", "t2", "t1"):
        played.complete_task(name)

    assert played.state.ended
    assert list(replay_log(played.commits)) == []


STAGES = Pipeline(stages=(Stage(agent="other"), Stage(skill="translation")))


def test_agent_of_a_stage_is_chosen_when_it_starts() -> None:
    staged = story(strategy=STAGES, loads={"slow": Load(queued=9)}).start()
    (accepted,) = staged.entries_of(PlanAccepted)
    assert [planned.agent for planned in accepted.plan.tasks] == ["other", "quick"]

    staged.loads = {"quick": Load(queued=9)}
    staged.complete_task("other")
    staged.fail_task("translation", failure(retryable=True))
    staged.complete_task("translation", "fertig")

    assert got(staged)["translation"] == "slow"
    assert staged.entries_of(RetryScheduled)[0].agent == "quick"
    assert (staged.outcome.status, staged.outcome.answer) == ("completed", "fertig")
    assert not list(replay_log(staged.commits))


def test_each_skill_of_a_fan_out_is_one_member() -> None:
    asked_all = story(strategy=FanOut(skills=("translation", "poetry"), synthesizer=None)).start()

    assert got(asked_all) == {"translation": "quick", "poetry": "slow"}
    assert asked_all.handoff("poetry").intent == "Serve the request as to poetry"
    asked_all.complete_task("translation")
    asked_all.complete_task("poetry")
    assert asked_all.outcome.status == "completed"
    assert not list(replay_log(asked_all.commits))


def selected(*chosen: dict[str, Any], **given: Any) -> WorkflowDriver:
    routed = story(strategy=Router(synthesizer=None, **given), loads={"quick": Load(queued=9)}).start()
    routed.complete_task("classify-1", {"agents": [{"confidence": 0.9, **each} for each in chosen]})
    return routed


def test_classifier_may_select_a_skill_and_the_idle_agent_answers() -> None:
    routed = selected({"skill": "translation"}, {"skill": "translation"}, {"skill": "juggling"})

    assert got(routed) == {"classify-1": "classifier", "translation": "slow"}
    routed.complete_task("translation", "fertig")
    assert routed.outcome.answer == "fertig"
    assert not list(replay_log(routed.commits))


def test_planner_after_an_escalation_knows_all_agents_of_a_selected_skill() -> None:
    routed = selected({"skill": "translation"}, {"agent": "other"}, escalate=PlanAndExecute())

    given: Any = routed.handoff("plan-1").input
    assert [item["name"] for item in given["agents"]] == ["quick", "slow", "other"]


def test_stage_with_a_missing_skill_is_held_until_an_agent_joins() -> None:
    staged = story(strategy=STAGES, cards=(card("other"),)).start()
    staged.complete_task("other")

    (held,) = staged.entries_of(TaskHeld)
    assert held.reason == "no agent with the skill translation is alive"
    assert staged.statuses()["translation"] == "held"
    assert build_trace(staged.log).children[0].children[-1].name == "invoke_agent"
    staged.cards = CARDS
    staged.fire_timer()
    assert got(staged)["translation"] == "quick"
    staged.complete_task("translation", "fertig")
    assert staged.outcome.status == "completed"
    assert not list(replay_log(staged.commits))


def test_unassigned_stage_or_member_at_the_deadline_is_a_gap_with_the_reason() -> None:
    for strategy in (STAGES, FanOut(skills=("poetry", "translation"))):
        cards = (card("other"), card("poet", skills=("poetry",)))
        waiting = story(strategy=strategy, cards=cards, limits=Limits(deadline=15)).start()
        waiting.complete_task(next(iter(waiting.statuses())), "done")

        while waiting.state.phase == "running":
            waiting.fire_timer()
        if not waiting.state.ended:
            assert [report.agent for report in waiting.handoff("synthesis").context] == ["poet", ""]
            waiting.complete_task("synthesis", {"answer": "half"})

        (gap,) = waiting.outcome.gaps
        assert (waiting.outcome.status, gap.agent) == ("partial", "")
        assert gap.reason == "the deadline of 15 s was reached; no agent with the skill translation was alive"
        assert not list(replay_log(waiting.commits))


def test_search_for_an_agent_continues_past_the_deadline_during_an_approval() -> None:
    strategy = FanOut(skills=("translation", "dance"), synthesizer=None)
    shy = (card("quick", skills=("translation",), approval="required"),)
    panel = story(strategy=strategy, cards=shy, limits=Limits(deadline=5)).start()

    panel.fire_timer()

    assert panel.now >= panel.state.deadline
    assert panel.statuses() == {"translation": "awaiting_answer", "dance": "held"}


def test_stage_is_named_after_its_agent_or_skill() -> None:
    assert Stage(skill="duplicate charges").name == "duplicate-charges"
    assert Stage(skill="translation", name="first").name == "first"
    assert Team(name="t", strategy=STAGES).required_agents() == {"other": "works"}
    assert Team(name="t", strategy=STAGES).required_skills() == ("translation",)
    for wrong in ({}, {"agent": "other", "skill": "translation"}):
        with pytest.raises(ValidationError, match="a stage names an agent, or a skill"):
            Stage.model_validate({"name": "x", **wrong})
    with pytest.raises(ValidationError, match="a selection names an agent, or a skill"):
        SelectedAgent.model_validate({"confidence": 1})
