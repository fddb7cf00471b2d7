"""Messages that go over the bus: counted and timed as the messaging conventions ask, and where they went as spans.

Off, nobody watches the bus.
"""

from __future__ import annotations

from pointsman.ports.bus import Hop, Server, Watcher
from pointsman.telemetry import metrics, semconv
from pointsman.telemetry.fast.histograms import Labels
from pointsman.telemetry.traces import Happening, parse_traceparent, record, reserve, tracing

__all__ = ["watcher"]


def watcher() -> Watcher | None:
    """What a bus is to be watched with; None when it need not tell anybody."""
    return _Watching() if metrics.measuring() or tracing() else None


class _Watching:
    """There is no duration of a receive: a pull is kept open, and its time is that of having nothing to do."""

    def __init__(self) -> None:
        self._sent: dict[tuple[str, Server | None, str | None], Labels] = {}
        self._taken: dict[tuple[str, Server | None, str], Labels] = {}
        """As many as there are destinations and errors, or queues: it is the template that names one."""

    def sent(self, subject: str, server: Server | None, seconds: float, error: str | None) -> None:
        if not metrics.measuring():
            return
        key = (semconv.destination(subject), server, error)
        if (of := self._sent.get(key)) is None:
            of = self._sent[key] = metrics.labels(semconv.sent_message(subject, server, error))
        metrics.measure(semconv.OPERATION_DURATION, seconds, of)

    def received(self, subject: str, server: Server | None, consumer: str, amount: int) -> None:
        if not metrics.measuring():
            return
        key = (subject, server, consumer)
        if (of := self._taken.get(key)) is None:
            of = self._taken[key] = metrics.labels(semconv.taken_messages(subject, server, consumer))
        metrics.add(semconv.CONSUMED_MESSAGES, amount, of)

    def passed(self, hop: Hop) -> None:
        parent = parse_traceparent(hop.headers.get("traceparent"), hop.headers.get("tracestate"))
        if parent is None:
            return
        name, about = semconv.broker_hop(hop.subject, hop.server, stored=hop.steps[-1].kind in ("stored", "refused"))
        record(
            name,
            context=reserve(parent),
            parent_span_id=parent.span_id,
            started=hop.steps[0].at,
            ended=hop.steps[-1].at,
            attributes=about,
            error=("refused", hop.error) if hop.error else None,
            happenings=[Happening(f"pointsman.broker.{step.kind}", step.at, {semconv.BROKER_PEER: step.where or None})
                        for step in hop.steps],
        )  # fmt: skip
