"""What stands on the bus where a message of a workflow is to come, and is no part of that workflow: it is taken away.

Whoever may publish in the namespace can leave something there. So does an earlier workflow of the same id whose log is
gone, by age or by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from pointsman.core.model.inputs import CLOCK_SKEW
from pointsman.core.model.messages import Message
from pointsman.core.model.state import State
from pointsman.engine.log.reader import is_outcome
from pointsman.engine.process.handoff_codec import RESENT_HEADER
from pointsman.ports.bus import Bus, StoredMessage
from pointsman.telemetry import get_logger
from pointsman_schemas.events import Handoff, Outcome, Timer

__all__ = ["is_outcome_of", "remove_foreign"]

_DECIDED_AT_HEADER = "ce-time"  # of a handoff and of an outcome: when it was decided, which the log says

_log = get_logger(__name__)


async def remove_foreign(bus: Bus, state: State, message: Message, headers: dict[str, str], ahead: timedelta) -> bool:
    """Whether what stood where `message`, of `state`, is to come was a stranger: it is gone now. `headers` are those of
    the message; `ahead` is the broker's clock before the one here. Raises `BusUnavailableError`."""
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
    """Whether it is the outcome of `state`, which would have `headers` now, and not of an earlier workflow of the same
    id whose log is gone."""
    # The broker's clock may have been set back; and who could not read the log has ended it at another time.
    same = there.headers.get(_DECIDED_AT_HEADER) == headers[_DECIDED_AT_HEADER]
    return is_outcome(there) and (same or there.at - state.started_at >= -CLOCK_SKEW)


async def _foreign_timer(bus: Bus, target: str, due: datetime) -> bool:
    # What stands there fired, unless it was stored before its time: then somebody else has put it there, and a workflow
    # that took it for its own wake-up would never get that.
    there = await bus.last("work", target)
    if there is not None and due - there.at <= CLOCK_SKEW:
        return False
    _log.warning("timer_replaced", subject=target, hint="somebody published it; only the broker may, in its time")
    await bus.purge("work", target)
    return True


async def _foreign_handoff(bus: Bus, target: str, handoff: Handoff, headers: dict[str, str]) -> bool:
    # Results of the first time may be there, too, which nobody would ever be told of again.
    there = await bus.last("handoffs", target)
    if there is None or there.headers.get(_DECIDED_AT_HEADER) == headers[_DECIDED_AT_HEADER]:
        return False
    _log.warning("handoff_replaced", subject=target, hint="it is of a workflow of this id whose log is gone")
    await bus.purge("work", handoff.return_to)
    await bus.purge("handoffs", target)
    headers[RESENT_HEADER] = "true"
    return True


async def _foreign_outcome(bus: Bus, target: str, state: State, headers: dict[str, str]) -> bool:
    there = await bus.last("log", target)
    if there is None or is_outcome_of(there, state, headers):
        return False
    _log.warning("outcome_replaced", subject=target, hint="somebody published it; only the team's supervisors may")
    await bus.purge("log", target)
    return True
