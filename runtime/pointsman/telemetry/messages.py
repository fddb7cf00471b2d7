"""Messages that go over the bus, counted and timed as the messaging conventions ask. Off, nobody watches the bus."""

from __future__ import annotations

from pointsman.ports import Server, Watcher
from pointsman.telemetry import metrics, names

__all__ = ["watcher"]


def watcher() -> Watcher | None:
    """What a bus is to be watched with; None when nothing is measured, and it need not tell anybody."""
    return _Measuring() if metrics.measuring() else None


class _Measuring:
    """There is no duration of a receive: a pull is kept open, and its time is that of having nothing to do."""

    def sent(self, subject: str, server: Server | None, seconds: float, error: str | None) -> None:
        about = names.sent_message(subject, server, error)
        metrics.count(names.SENT_MESSAGES, attributes=about)
        metrics.observe(names.OPERATION_DURATION, seconds, about)

    def received(self, subject: str, server: Server | None, consumer: str, amount: int) -> None:
        metrics.count(names.CONSUMED_MESSAGES, amount, names.taken_messages(subject, server, consumer))
