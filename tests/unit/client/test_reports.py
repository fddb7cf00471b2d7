"""A report or a piece of text counts only if its body and its subject have the same agent and workflow."""

from __future__ import annotations

import pytest
from support.history import START

from pointsman.client.workflow import read_delta, read_progress
from pointsman.ports.bus import StoredMessage
from pointsman_schemas.events import Delta, Event, Progress
from pointsman_schemas.strict_json import dump


def message(kind: str, workflow: str, agent: str, event: Event) -> StoredMessage:
    last = ".id" if kind == "event" else ""
    return StoredMessage(f"pointsman.{kind}.crew.{workflow}.{agent}{last}", dump(event), {}, 1, START)


@pytest.mark.parametrize(
    ("workflow", "agent", "counts"), [("wf_1", "writer", True), ("wf_1", "spy", False), ("wf_2", "writer", False)]
)
def test_no_worker_speaks_for_another_agent(workflow: str, agent: str, *, counts: bool) -> None:
    """The broker checks that a publisher may use the agent in the subject, but does not check the body."""
    of = {"workflow_id": "wf_1", "task_id": "t1", "attempt": 1, "agent": "writer"}
    delta, report = Delta(**of, text="Pay now."), Progress(**of, kind="progress", message="done", started_at=START)

    assert (read_delta(message("delta", workflow, agent, delta)) is not None) is counts
    assert (read_progress(message("event", workflow, agent, report)) is not None) is counts
