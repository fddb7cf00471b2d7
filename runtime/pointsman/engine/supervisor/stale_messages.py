"""Find foreign messages on subjects on which a workflow will publish. A foreign message is not from the workflow.

Only supervisors publish on these subjects. But if the log of an earlier workflow with the same id was removed, by age
or by hand, messages of the earlier workflow may remain.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from pointsman.core.model.inputs import CLOCK_SKEW
from pointsman.core.model.messages import Message
from pointsman.core.model.state import State
from pointsman.engine.log.reader import is_outcome, round_of_outcome
from pointsman.engine.process.handoff_codec import RESENT_HEADER, is_cancellation
from pointsman.ports.bus import Bus, StoredMessage, StreamKind
from pointsman.telemetry import get_logger
from pointsman_schemas.events import Handoff, Outcome, Timer

__all__ = ["delete_messages", "find_foreign", "is_outcome_of"]

_DECIDED_AT_HEADER = "ce-time"  # in a handoff and in an outcome: the time of the decision, as in the log

_log = get_logger(__name__)


async def find_foreign(
    bus: Bus, state: State, message: Message, headers: dict[str, str], ahead: timedelta
) -> StoredMessage | None:
    """Find a foreign message that occupies the subject of `message`.

    Args:
        bus: The bus.
        state: The workflow.
        message: The message that the workflow publishes next.
        headers: The headers of `message`. If a handoff replaces a foreign handoff, this function adds a header to it.
        ahead: The broker's time minus the time of this machine.

    Returns:
        The foreign message; None if the subject has no foreign message.

    Raises:
        BusUnavailableError: the broker does not answer.
    """
    match message.event:
        case Timer() if message.due is not None:
            return await _foreign_timer(bus, message, message.due + ahead)
        case Handoff():
            return await _foreign_handoff(bus, message.subject, state, headers)
        case Outcome():
            return await _foreign_outcome(bus, message.subject, state, headers)
        case _:
            return None


async def delete_messages(bus: Bus, subject: str, message: Message) -> None:
    """Delete the messages on the subject of `message`: a timer, a delayed handoff or an outcome."""
    stream: StreamKind
    match message.event:
        case Timer():
            stream = "work"
        case Handoff():
            stream = "handoffs"
        case _:
            stream = "log"
    for stored in [stored async for stored in bus.read(stream, subject)]:
        await bus.delete(stream, stored.sequence)


def is_outcome_of(there: StoredMessage, state: State, headers: Mapping[str, str]) -> bool:
    """Return True if a stored outcome is the outcome of `state`, not of an earlier workflow with the same id.

    Args:
        there: The stored message.
        state: The workflow.
        headers: The headers that the outcome would have if it were published now.
    """
    if not is_outcome(there) or round_of_outcome(there) != state.round:
        return is_outcome(there) and round_of_outcome(there) > state.round  # the workflow was resumed after `state`
    # One of two tests is enough, because each test can fail although the outcome is the outcome of `state`. The time of
    # the decision differs if a supervisor that could not read the log ended the workflow. The time of storage is too
    # early if the broker's clock was set back.
    same = there.headers.get(_DECIDED_AT_HEADER) == headers[_DECIDED_AT_HEADER]
    return same or there.at - state.started_at >= -CLOCK_SKEW


async def _foreign_timer(bus: Bus, message: Message, due: datetime) -> StoredMessage | None:
    # A stored timer is foreign if it was stored before its time, or comes from another schedule or a client. It must be
    # deleted, because a timer is not armed while a message is stored on its subject.
    there = await bus.last("work", message.subject)
    if there is None or (there.scheduled_by == message.schedule and due - there.at <= CLOCK_SKEW):
        return None
    _log.warning(
        "timer_replaced",
        subject=message.subject,
        hint="another process published the timer; only the broker may publish a timer",
    )
    return there


async def _foreign_handoff(bus: Bus, target: str, state: State, headers: dict[str, str]) -> StoredMessage | None:
    there = await bus.last("handoffs", target)
    if there is None or there.headers.get(_DECIDED_AT_HEADER) == headers[_DECIDED_AT_HEADER]:
        return None
    if is_cancellation(there) and there.at - state.started_at >= -CLOCK_SKEW:
        return None  # another supervisor abandoned the task after this process had read the log
    _log.warning(
        "handoff_replaced", subject=target, hint="the old handoff is from an earlier workflow whose log was removed"
    )
    headers[RESENT_HEADER] = "true"
    return there


async def _foreign_outcome(bus: Bus, target: str, state: State, headers: dict[str, str]) -> StoredMessage | None:
    there = await bus.last("log", target)
    if there is None or is_outcome_of(there, state, headers):
        return None
    _log.warning("outcome_replaced", subject=target, hint="only the team's supervisors may publish an outcome")
    return there
