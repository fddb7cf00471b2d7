"""Convert the log of a workflow to the lines of the page, each with the sequence of the log message."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pointsman.core.views import timeline
from pointsman.core.views.timeline import Tone
from pointsman.ports.bus import StoredMessage, StreamKind
from pointsman_schemas.events import Progress
from pointsman_schemas.log import Entry

__all__ = ["TimelineRow", "TimelineRows"]

_MAX_LINE_CHARS = 300  # number of characters of a line; the page of the event has the whole text
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CALL_KINDS = {"tool": "tool_called", "chat": "model_called"}


@dataclass(frozen=True, slots=True)
class TimelineRow:
    """One line: an entry of a commit, or a report of an agent.

    `stream` and `sequence` name the message, and `part` is the index of the entry in the commit; 0 for a report.

    Lines come from two streams with separate sequences, so they are sorted by `order`, the time of the message in
    microseconds.
    """

    order: int
    stream: StreamKind
    sequence: int
    part: int
    at: datetime
    kind: str
    tone: Tone
    actor: str
    detail: str
    task: str


class TimelineRows:
    """The lines of one workflow, in the order of the log."""

    def __init__(self) -> None:
        self._timeline = timeline.Timeline()

    def from_commit(self, stored: StoredMessage, entries: Iterable[Entry]) -> Iterator[TimelineRow]:
        for part, entry in enumerate(entries):
            task = getattr(entry, "task_id", None) or ""
            yield self._line("log", stored, part, self._timeline.render(entry), entry.kind, task)

    def from_report(self, stored: StoredMessage, report: Progress) -> TimelineRow:
        kind = _CALL_KINDS.get(report.kind, report.kind)
        return self._line("results", stored, 0, self._timeline.render(report), kind, report.task_id)

    def _line(
        self, stream: StreamKind, stored: StoredMessage, part: int, line: timeline.TimelineLine, kind: str, task: str
    ) -> TimelineRow:
        text = f"{line.text} {line.detail}".strip(" :")[:_MAX_LINE_CHARS]
        order = (stored.at - _EPOCH) // timedelta(microseconds=1)
        return TimelineRow(order, stream, stored.sequence, part, line.at, kind, line.tone, line.actor, text, task)
