"""Remove foreign messages from subjects that a workflow is about to publish on.

Every publisher of the namespace can leave a message on such a subject. An earlier workflow of the same id can also
leave a message, if the log of this workflow was removed by age or by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from pointsman.core.model.inputs import CLOCK_SKEW
from pointsman.core.model.messages import Message
from pointsman.core.model.state import State
from pointsman.engine.log.reader import is_outcome, round_of_outcome
from pointsman.engine.process.handoff_codec import RESENT_HEADER
from pointsman.ports.bus import Bus, StoredMessage
from pointsman.telemetry import get_logger
from pointsman_schemas.events import Handoff, Outcome, Timer

__all__ = ["is_outcome_of", "remove_foreign"]

_DECIDED_AT_HEADER = "ce-time"  # of a handoff and of an outcome: the time of the decision, as in the log

_log = get_logger(__name__)


async def remove_foreign(bus: Bus, state: State, message: Message, headers: dict[str, str], ahead: timedelta) -> bool:
    """Delete a foreign message that occupies the subject of `message`.

    Args:
        bus: The bus.
        state: The workflow.
        message: The message that the workflow publishes next.
        headers: The headers of `message`. If a handoff replaces a foreign handoff, these headers mark the handoff.
        ahead: The broker's time minus the time of this machine.

    Returns:
        True if a foreign message was deleted.

    Raises:
        BusUnavailableError: the broker does not answer.
    """
    match message.event:
        case Timer() if message.due is not None:
            return await _foreign_timer(bus, message.subject, message.due + ahead)
        case Handoff() as handoff:
            return await _foreign_handoff(bus, message.subject, handoff, headers)
        case Outcome():
            return await _foreign_outcome(bus, message.subject, state, headers)
        case _:
            return False


def is_outcome_of(there: StoredMessage, state: State, headers: Mapping[str, str]) -> bool:
    """Return True if a stored outcome is the outcome of `state`, and not of an earlier workflow of the same id.

    Args:
        there: The stored message.
        state: The workflow.
        headers: The headers that the outcome would have if it were published now.
    """
    if not is_outcome(there) or round_of_outcome(there) != state.round:
        return is_outcome(there) and round_of_outcome(there) > state.round  # the workflow was resumed since
    # The broker's clock may have been set back; a supervisor that cannot read a log ends the workflow at another time.
    same = there.headers.get(_DECIDED_AT_HEADER) == headers[_DECIDED_AT_HEADER]
    return same or there.at - state.started_at >= -CLOCK_SKEW


async def _foreign_timer(bus: Bus, target: str, due: datetime) -> bool:
    # A stored timer fired, unless it was stored before its time. A timer that was stored before its time comes from
    # another process, and the workflow would never get its own timer.
    there = await bus.last("work", target)
    if there is not None and due - there.at <= CLOCK_SKEW:
        return False
    _log.warning(
        "timer_replaced",
        subject=target,
        hint="another process published it; only the broker may, when the timer is due",
    )
    await bus.purge("work", target)
    return True


async def _foreign_handoff(bus: Bus, target: str, handoff: Handoff, headers: dict[str, str]) -> bool:
    # Results for the earlier handoff may also be stored: the broker would never deliver these results again.
    there = await bus.last("handoffs", target)
    if there is None or there.headers.get(_DECIDED_AT_HEADER) == headers[_DECIDED_AT_HEADER]:
        return False
    _log.warning(
        "handoff_replaced", subject=target, hint="it belongs to an earlier workflow of this id whose log was removed"
    )
    await bus.purge("work", handoff.return_to)
    await bus.purge("handoffs", target)
    headers[RESENT_HEADER] = "true"
    return True


async def _foreign_outcome(bus: Bus, target: str, state: State, headers: dict[str, str]) -> bool:
    there = await bus.last("log", target)
    if there is None or is_outcome_of(there, state, headers):
        return False
    _log.warning(
        "outcome_replaced", subject=target, hint="another process published it; only the team's supervisors may"
    )
    await bus.purge("log", target)
    return True
