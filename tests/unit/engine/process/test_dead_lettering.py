"""A dead letter is stored once and counted once."""

from __future__ import annotations

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from support.history import START

from pointsman.bus.memory.bus import MemoryBus
from pointsman.engine.process.dead_lettering import dead_letter
from pointsman.ports.bus import StoredMessage
from pointsman.telemetry import metrics
from pointsman.testing.clock import VirtualClock
from pointsman_schemas.envelope import decode
from pointsman_schemas.events import AttemptError
from pointsman_schemas.subjects import Subjects

SUBJECTS = Subjects()
CAUSE = AttemptError(kind="undecodable", message="not JSON")


def stored(sequence: int) -> StoredMessage:
    return StoredMessage("pointsman.handoff.fitter.crew.wf_1.t1.1", b"{", {}, sequence, START)


async def test_a_letter_counts_once_however_often_it_is_buried() -> None:
    reader, bus, clock = InMemoryMetricReader(), MemoryBus(), VirtualClock()
    metrics.configure(MeterProvider([reader], shutdown_on_exit=False).get_meter("test"))

    try:
        for sequence in (7, 7, 8):
            await dead_letter(bus, SUBJECTS, clock, stored(sequence), origin="fitter", cause=CAUSE, attempts=1)
        data = reader.get_metrics_data()
    finally:
        metrics.configure(None)

    assert data is not None
    (point,) = data.resource_metrics[0].scope_metrics[0].metrics[0].data.data_points
    assert (point.value, dict(point.attributes or {})) == (2, {"pointsman.origin": "fitter"})  # type: ignore[union-attr]


async def test_a_letters_source_is_the_agent_or_the_team_that_gave_up() -> None:
    bus, clock = MemoryBus(), VirtualClock()

    await dead_letter(bus, SUBJECTS, clock, stored(7), origin="fitter", cause=CAUSE, attempts=1)
    await dead_letter(bus, SUBJECTS, clock, stored(8), origin="garage", cause=CAUSE, attempts=1, team="garage")

    envelopes = [decode(letter.headers, letter.body)[0] async for letter in bus.read("dead", SUBJECTS.dead_letters)]
    assert [envelope and envelope.source for envelope in envelopes] == [
        "/pointsman/agent/fitter",
        "/pointsman/team/garage",
    ]
