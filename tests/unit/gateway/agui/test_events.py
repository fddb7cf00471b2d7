"""A front end sees the text and the tools of an agent only in the attempts of that agent."""

from __future__ import annotations

import pytest
from support.history import WORKFLOW, at, completed

from pointsman.gateway.agui.events import RunEvents
from pointsman_schemas.events import Delta, Progress


@pytest.mark.parametrize("agent", ["tester", "fitter"])
def test_text_and_tools_of_another_agent_are_not_shown_in_an_attempt(agent: str) -> None:
    run = RunEvents("t", "r", WORKFLOW, "crew")
    for entry in completed()[:7]:  # t1 is dispatched to fitter, and t2 to tester
        list(run.entry(entry))
    text = Delta(workflow_id=WORKFLOW, task_id="t1", attempt=1, agent=agent, text="hello")
    tool = Progress(
        workflow_id=WORKFLOW,
        task_id="t1",
        attempt=1,
        agent=agent,
        kind="tool",
        name="pay",
        started_at=at(2),
        ended_at=at(3),
    )

    shown = [event.type.value for item in (text, tool) for event in run.live(item)]

    assert (len(shown) > 4) is (agent == "fitter")
    assert shown == [] or agent == "fitter"


def test_text_and_tools_that_arrive_before_their_attempt_are_shown_after_its_start() -> None:
    run, first, then = RunEvents("t", "r", WORKFLOW, "crew"), completed()[:4], completed()[4:7]
    for entry in first:
        list(run.entry(entry))
    text = Delta(workflow_id=WORKFLOW, task_id="t1", attempt=1, agent="fitter", text="hello")

    early = list(run.live(text))
    shown = [event.type.value for entry in then for event in run.entry(entry)]

    assert early == []
    assert "TEXT_MESSAGE_CONTENT" in shown[shown.index("SUBAGENT_STARTED") :]
