"""The story of a workflow as its page shows it: each line in plain words, with the message that it opens to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from pointsman.core.views import timeline
from pointsman.core.views.timeline import Tone
from pointsman.ports.bus import Stored
from pointsman_schemas.events import Progress
from pointsman_schemas.log import Entry

__all__ = ["Line", "Story"]

_LONGEST = 300  # characters of a line; the whole stands in the event's body
_CALLS = {"tool": "tool_called", "chat": "model_called"}


@dataclass(frozen=True, slots=True)
class Line:
    """One entry, the `part`th of the message at `sequence`, or one report."""

    sequence: int
    part: int
    at: datetime
    kind: str
    tone: Tone
    who: str
    what: str
    task: str


class Story:
    """The lines of one workflow, in the order of its log."""

    def __init__(self) -> None:
        self._story = timeline.Timeline()

    def of_commit(self, stored: Stored, entries: Iterable[Entry]) -> Iterator[Line]:
        for part, entry in enumerate(entries):
            task = getattr(entry, "task_id", None) or ""
            yield self._line(stored, part, self._story.render(entry), entry.kind, task)

    def of_report(self, stored: Stored, report: Progress) -> Line:
        kind = _CALLS.get(report.kind, report.kind)
        return self._line(stored, 0, self._story.render(report), kind, report.task_id)

    def _line(self, stored: Stored, part: int, told: timeline.TimelineLine, kind: str, task: str) -> Line:
        what = f"{told.text} {told.detail}".strip(" :")[:_LONGEST]
        return Line(stored.sequence, part, told.at, kind, told.tone, told.actor, what, task)
