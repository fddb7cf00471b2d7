"""Messages become events of webhooks."""

from __future__ import annotations

from datetime import UTC, datetime

from pointsman.ports.bus import StoredMessage
from pointsman.webhooks.events import read_event
from pointsman_schemas.subjects import Subjects


def test_the_place_of_a_removed_dead_letter_is_no_event() -> None:
    subjects = Subjects("own")
    place = StoredMessage(subjects.dead_letter("writer", "wf_1", "dl_1"), b"", {}, 1, datetime(2026, 1, 1, tzinfo=UTC))

    assert read_event(place, subjects, max_body=1000) is None
