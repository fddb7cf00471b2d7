"""Name the streams of a namespace."""

from __future__ import annotations

from collections.abc import Mapping

from pointsman.ports.bus import StreamKind
from pointsman_schemas.subjects import Subjects

__all__ = ["stream_names"]


def stream_names(subjects: Subjects, *, apart: bool) -> Mapping[StreamKind, str]:
    """Return the name of each stream at the broker. With `apart`, handoffs have their own stream."""
    return {
        "work": subjects.work_stream,
        "handoffs": subjects.handoff_stream if apart else subjects.work_stream,
        "log": subjects.log_stream,
        "dead": subjects.dead_letter_stream,
        "limits": subjects.limits_stream,
        "artifacts": f"OBJ_{subjects.artifacts_bucket}",
    }
