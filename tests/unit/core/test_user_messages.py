"""Messages to a workflow are recorded once and within limits, reach every later step, and are not lost at its end."""

from __future__ import annotations

from typing import Any

import pytest
from support.core import SUBJECTS, WORKFLOW, WorkflowDriver, card, cards, failure, messages, plan, task

from pointsman.core.model.inputs import ControlReceived
from pointsman.core.model.state import copy_with
from pointsman.core.replay.replayer import replay_log
from pointsman.core.user_messages import late_message, late_turn, unread_turn
from pointsman_schemas.card import Role
from pointsman_schemas.events import Control, Result, UserMessages
from pointsman_schemas.ids import child_id_for
from pointsman_schemas.log import ControlIgnored, MessageReceived, ThreadTurn
from pointsman_schemas.team import Adaptive, Limits, Pipeline, Stage

PLANNER = card("planner", role=Role.PLAN)


def adaptive(**given: Any) -> WorkflowDriver:
    return WorkflowDriver(strategy=Adaptive(**given))


def tell(driver: WorkflowDriver, text: str = "only March", name: str = "m1", actor: str = "ada") -> Any:
    return driver.control("tell", text=text, event_id=name, actor=actor)


def in_thread(driver: WorkflowDriver, caller: str = "ada") -> WorkflowDriver:
    driver.current = copy_with(driver.state, thread=ThreadTurn(thread="talk", caller=caller, number=1))
    return driver


def texts(driver: WorkflowDriver, task_id: str) -> list[str]:
    return [each.text for each in driver.handoff(task_id).messages]


def test_message_is_recorded_once_with_its_sender() -> None:
    driver = WorkflowDriver().planned(task("a"))

    entries = tell(driver, actor="bo")
    again = tell(driver, actor="bo")

    (message,) = driver.state.messages
    assert (message.number, message.text, message.by) == (1, "only March", "bo")
    assert [entry.kind for entry in entries] == ["message_received"]
    assert again == ()


def test_messages_beyond_the_limit_are_ignored_with_the_reason() -> None:
    driver = WorkflowDriver(limits=Limits(messages=2)).planned(task("a"))

    for number in range(4):
        tell(driver, name=f"m{number}")

    assert [each.number for each in driver.state.messages] == [1, 2]
    assert [each.reason for each in driver.entries_of(ControlIgnored)] == [
        "the workflow has 2 messages; at most 2 are allowed"
    ] * 2


def test_empty_message_is_ignored() -> None:
    driver = WorkflowDriver().planned(task("a"))

    tell(driver, text=" \n")

    assert not driver.state.messages
    assert [each.reason for each in driver.entries_of(ControlIgnored)] == ["the message is empty"]


def test_later_handoffs_have_the_messages_and_an_earlier_one_stays_equal() -> None:
    driver = WorkflowDriver().planned(task("a"), task("b", needs=["a"]))
    before = driver.handoff("a")

    tell(driver)

    assert driver.handoff("a") == before
    driver.complete_task("a")
    assert texts(driver, "b") == ["only March"]
    driver.complete_task("b")
    assert texts(driver, "synthesis") == ["only March"]


def test_retry_has_the_messages_since_the_first_attempt() -> None:
    driver = WorkflowDriver().planned(task("a"))
    tell(driver)

    driver.fail_task("a", failure(retryable=True))
    assert (driver.task("a").attempt, texts(driver, "a")) == (2, ["only March"])


def test_each_agent_at_work_gets_all_messages_on_its_own_subject() -> None:
    driver = WorkflowDriver().planned(task("a"), task("b"), task("c", agent="other"), task("d", needs=["a"]))
    tell(driver)
    tell(driver, "and April", "m2")

    sent = {each.subject: each.event for each in messages(driver.state) if isinstance(each.event, UserMessages)}

    assert list(sent) == [
        SUBJECTS.message("worker", "team", WORKFLOW, 2),
        SUBJECTS.message("other", "team", WORKFLOW, 2),
    ]
    assert all([each.text for each in told.messages] == ["only March", "and April"] for told in sent.values())


def test_agent_whose_handoff_has_the_messages_gets_no_further_copy() -> None:
    driver = WorkflowDriver().planned(task("a"), task("b", agent="other", needs=["a"]))
    tell(driver)

    driver.complete_task("a")

    assert not [each for each in messages(driver.state) if isinstance(each.event, UserMessages)]


def test_team_at_work_gets_each_message_as_a_control() -> None:
    team = card("below", team=True)
    driver = WorkflowDriver(agents=("below",), strategy=Pipeline(stages=(Stage(agent="below"),)), cards=(team,)).start()
    (stage,) = driver.state.tasks
    tell(driver)

    sent = [each for each in messages(driver.state) if isinstance(each.event, Control)]

    child = child_id_for("below", WORKFLOW, stage, 1)
    assert [(each.subject, each.event) for each in sent] == [
        (SUBJECTS.control("below", child, "tell", "team", "message-1"), Control(action="tell", text="only March"))
    ]


def test_adaptive_planner_gets_the_messages_with_the_next_result() -> None:
    driver = adaptive().planned(task("a"), task("b"))

    tell(driver)
    assert "plan-2" not in driver.state.tasks

    driver.complete_task("a")
    assert texts(driver, "plan-2") == ["only March"]
    assert "new messages arrived" in driver.handoff_input("plan-2")["replan_reason"]


def test_message_after_the_last_plan_leads_to_one_more_plan() -> None:
    driver = adaptive().start()
    driver.complete_task("plan-1", plan(task("a"), done=True))
    tell(driver)

    driver.complete_task("a")
    assert texts(driver, "plan-2") == ["only March"]

    driver.complete_task("plan-2", plan(done=True))
    assert "synthesis" in driver.state.tasks


def test_message_cannot_exceed_the_plans_and_makes_no_answer_partial() -> None:
    driver = adaptive(max_plans=1).start()
    driver.complete_task("plan-1", plan(task("a"), done=True))
    tell(driver)

    driver.complete_task("a")
    driver.complete_task("synthesis", {"answer": "done"}, messages_read=1)

    assert driver.outcome.status == "completed"


def test_unread_messages_are_counted_and_become_the_next_turn() -> None:
    driver = in_thread(WorkflowDriver(strategy=Pipeline(stages=(Stage(agent="worker"),))).start())
    (stage,) = driver.state.tasks
    for number, (text, actor) in enumerate([("one", "ada"), ("two", "ada"), ("by bo", "bo"), ("three", "ada")], 1):
        tell(driver, text, f"m{number}", actor)

    driver.complete_task(stage, "done", messages_read=1)

    turn = unread_turn(driver.state)
    assert driver.outcome.unread_messages == 3
    assert turn is not None
    assert (turn.request.input, turn.request.thread) == ("two\n\nthree", "talk")


@pytest.mark.parametrize("read", [4, 99])
def test_read_messages_do_not_become_a_turn(read: int) -> None:
    driver = in_thread(WorkflowDriver(strategy=Pipeline(stages=(Stage(agent="worker"),))).start())
    (stage,) = driver.state.tasks
    for number in range(4):
        tell(driver, name=f"m{number}")

    driver.complete_task(stage, "done", messages_read=read)

    assert driver.state.messages_read == 4
    assert unread_turn(driver.state) is None


def test_cancelled_turn_has_no_next_turn() -> None:
    driver = in_thread(WorkflowDriver().planned(task("a")))
    tell(driver)

    driver.control("cancel")

    assert unread_turn(driver.state) is None


def test_message_with_the_last_result_is_late_and_not_lost() -> None:
    driver = WorkflowDriver().planned(task("a"))
    driver.complete_task("a")
    in_thread(driver)
    told = ControlReceived("m1", Control(action="tell", text="wait"), "ada")

    driver.decide_and_apply(driver.result("synthesis", {"answer": "done"}), told)

    turn = late_turn(driver.state, told)
    assert driver.state.ended
    assert not driver.state.messages
    assert turn is not None
    assert (turn.request.input, turn.request.thread) == ("wait", "talk")
    assert turn == late_turn(driver.state, told)


@pytest.mark.parametrize(
    ("thread", "said"),
    [
        ("", "the workflow has ended as cancelled, so no step is left that could read the message; send a new request"),
        (
            "bo",
            "the workflow has ended as cancelled, so no step is left that could read the message; only bo can continue "
            "its thread",
        ),
        ("ada", ""),
    ],
)
def test_late_message_is_refused_unless_it_continues_a_thread(thread: str, said: str) -> None:
    driver = WorkflowDriver().planned(task("a"))
    driver.control("cancel")
    if thread:
        in_thread(driver, thread)

    told = ControlReceived("m1", Control(action="tell", text="wait"), "ada")

    assert late_message(driver.state, told) == said
    assert (late_turn(driver.state, told) is None) is bool(said)


def test_recorded_message_is_a_redelivery_after_the_end() -> None:
    driver = in_thread(WorkflowDriver().planned(task("a")))
    tell(driver)
    driver.control("cancel")

    told = ControlReceived("m1", Control(action="tell", text="only March"), "ada")

    assert (late_message(driver.state, told), late_turn(driver.state, told)) == ("", None)


def test_log_with_messages_is_decided_again_without_difference() -> None:
    driver = WorkflowDriver(limits=Limits(messages=1), cards=cards("worker", "other")).planned(task("a"))
    tell(driver)
    tell(driver, name="m2")
    driver.complete_task("a")
    driver.complete_task("synthesis", {"answer": "done"}, messages_read=1)

    assert list(replay_log(driver.commits)) == []
    assert len(driver.entries_of(MessageReceived)) == 1


def test_result_says_nothing_about_messages_unless_it_has_read_one() -> None:
    driver = WorkflowDriver().planned(task("a"))

    result = driver.result("a").result

    assert isinstance(result, Result)
    assert "messages_read" not in result.model_dump()
