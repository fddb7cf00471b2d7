"""Events for callers have only listed fields. Fields for operators or for the runtime are omitted."""

from __future__ import annotations

from support.history import WORKFLOW, completed, failing

from pointsman.gateway.events import WorkflowEvent, event_view
from pointsman.gateway.streams import LogEvent, Position
from pointsman_schemas.events import AttemptError
from pointsman_schemas.log import AttemptFailed, Entry, TaskDispatched


def views(entries: list[Entry]) -> list[WorkflowEvent]:
    return [event_view(WORKFLOW, LogEvent(Position(1, part), entry)) for part, entry in enumerate(entries)]


def test_each_entry_has_an_event_of_its_kind() -> None:
    entries = [*completed(), *failing()]

    assert [view.type for view in views(entries)] == [entry.kind for entry in entries]


def test_the_detail_of_an_error_is_not_shown() -> None:
    secret = AttemptError(kind="handler_error", message="no bolts", detail="/etc/secret of host-7")
    entries: list[Entry] = [
        entry.model_copy(update={"error": secret}) if isinstance(entry, AttemptFailed) else entry for entry in failing()
    ]

    shown = "".join(view.model_dump_json() for view in views(entries))

    assert "no bolts" in shown
    assert "host-7" not in shown


def test_a_field_that_is_not_listed_stays_inside() -> None:
    (entry,) = [each for each in completed() if isinstance(each, TaskDispatched)][:1]

    shown = views([entry])[0].model_dump(exclude_none=True)

    assert entry.span_id
    assert set(shown) == {"type", "at", "workflow_id", "task_id", "attempt", "agent", "deadline"}
