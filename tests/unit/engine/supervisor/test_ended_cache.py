"""The cache has an ended workflow only as long as its log exists."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pointsman.engine.supervisor.ended_cache import EndedWorkflows
from pointsman.testing.clock import VirtualClock


@pytest.mark.parametrize(("retention", "known"), [(timedelta(days=30), True), (timedelta(minutes=30), False)])
def test_an_end_is_forgotten_before_its_log_can_be_removed(retention: timedelta, known: bool) -> None:
    clock = VirtualClock()
    ended = EndedWorkflows(clock, retention)

    ended.add("wf_1", clock.now() - timedelta(minutes=10))
    ended.add("wf_2", clock.now() - timedelta(minutes=20))  # an earlier end that is added later

    assert "wf_1" in ended
    assert ("wf_2" in ended) == known
    ended.evict()
    assert "wf_1" in ended
