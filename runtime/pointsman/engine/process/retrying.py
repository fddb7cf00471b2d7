"""What took work is not given up because the broker is away: it is asked again until it answers.

Who asks bounds it, if it has to be bounded: an attempt by its deadline, a worker by its leaving.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TypeVar

from pointsman.errors import BusUnavailable, Conflict, UnknownOutcome
from pointsman.ports.bus import Bus, Stored
from pointsman.ports.clock import Clock
from pointsman.telemetry import get_logger

__all__ = ["begin", "insist", "publish", "store_first"]

T = TypeVar("T")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0  # seconds between tries: soon at first, then calmly

_log = get_logger(__name__)


async def insist(call: Callable[[], Awaitable[T]], clock: Clock) -> T:
    """What `call` returns, once it does not raise `BusUnavailable`."""
    pause = _FIRST_PAUSE
    while True:
        try:
            return await call()
        except BusUnavailable as error:
            if pause == _FIRST_PAUSE:
                hint = "nothing is lost, it is tried again until it answers; `pointsman doctor` looks at it"
                _log.warning("waiting_for_broker", error=str(error), hint=hint)
        await clock.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


async def begin(start: Callable[[], Awaitable[T]], bus: Bus, clock: Clock, stop: asyncio.Event) -> T | None:
    """What `start` returns, which is called again where it lost its connection to the broker; None once `stop` is set.

    Raises:
        BusUnavailable: the broker is there, and did not answer.
    """

    async def started() -> T:
        while True:
            try:
                return await start()
            except BusUnavailable as error:
                if bus.connected:
                    raise
                hint = "it begins anew once the broker is back; `pointsman doctor` looks from here"
                _log.warning("waiting_for_broker", error=str(error), hint=hint)
            while not bus.connected:
                await clock.sleep(_FIRST_PAUSE)

    starting, stopped = asyncio.ensure_future(started()), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
        return starting.result() if starting.done() else None
    finally:
        for task in (starting, stopped):
            task.cancel()
        await asyncio.wait({starting, stopped})


async def store_first(bus: Bus, clock: Clock, subject: str, body: bytes, headers: Mapping[str, str]) -> Stored | None:
    """Return once the work stream holds a message on `subject`: None for this one, or what was there before it.

    What was there may be an earlier try of this one that was not answered.
    """

    async def store() -> Stored | None:
        try:
            await bus.publish(subject, body, headers, expect=0)
        except Conflict:
            # Also what a replicated stream says while an earlier publish is still under way: look, then decide.
            if (there := await bus.last("work", subject)) is None:
                raise BusUnavailable(f"{subject} was refused and is still empty; it is tried again") from None
            return there
        return None

    return await insist(store, clock)


async def publish(
    bus: Bus,
    subject: str,
    body: bytes,
    headers: Mapping[str, str],
    *,
    expect: int | None = None,
    message_id: str | None = None,
) -> None:
    """Store one message, asking again when the broker is silent; `expect` or `message_id` keeps it from counting twice.

    Raises:
        UnknownOutcome: it was silent three times in a row.
    """
    once = partial(bus.publish, subject, body, headers, expect=expect, message_id=message_id)
    for _ in range(_TRIES - 1):
        with suppress(UnknownOutcome):
            await once()
            return
    await once()


_TRIES = 3  # an unanswered publish is repeated under the same id; three silences in a row are an outage
