"""Retry broker calls with backoff until the broker answers. A caller that needs a deadline must set the deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TypeVar

from pointsman.errors import BusUnavailableError, ConflictError, PublishOutcomeUnknownError
from pointsman.ports.bus import Bus, StoredMessage
from pointsman.ports.clock import Clock
from pointsman.telemetry import get_logger
from pointsman.telemetry.trace_context import new_id

__all__ = ["publish_once", "publish_with_retry", "retry_while_unavailable", "start_with_retry"]

T = TypeVar("T")

_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.1, 5.0  # seconds between tries: short at first, then longer

_log = get_logger(__name__)


async def retry_while_unavailable(call: Callable[[], Awaitable[T]], clock: Clock) -> T:
    """Repeat `call` until the broker is available, that is, while `call` raises `BusUnavailableError`."""
    pause = _FIRST_PAUSE_S
    while True:
        try:
            return await call()
        except BusUnavailableError as error:
            if pause == _FIRST_PAUSE_S:
                hint = "the request is repeated until the broker answers; check the broker with `pointsman doctor`"
                _log.warning("waiting_for_broker", error=str(error), hint=hint)
        await clock.sleep(pause)
        pause = min(2 * pause, _MAX_PAUSE_S)


async def start_with_retry(start: Callable[[], Awaitable[T]], bus: Bus, clock: Clock, stop: asyncio.Event) -> T | None:
    """Call `start`. If the connection to the broker is lost during the call, repeat the call after the reconnect.

    Returns:
        The result of `start`; None if `stop` was set before `start` had a result.

    Raises:
        BusUnavailableError: The broker is connected, but did not answer.
    """

    async def started() -> T:
        while True:
            try:
                return await start()
            except BusUnavailableError as error:
                if bus.connected:
                    raise
                hint = "the start is repeated once the broker is connected; check the broker with `pointsman doctor`"
                _log.warning("waiting_for_broker", error=str(error), hint=hint)
            while not bus.connected:
                await clock.sleep(_FIRST_PAUSE_S)

    starting, stopped = asyncio.ensure_future(started()), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
        return starting.result() if starting.done() else None
    finally:
        for task in (starting, stopped):
            task.cancel()
        await asyncio.wait({starting, stopped})


async def publish_once(
    bus: Bus, clock: Clock, subject: str, body: bytes, headers: Mapping[str, str]
) -> StoredMessage | None:
    """Store a message on `subject` if the stream of results has no message on `subject`.

    The existing message may be this message, stored by an earlier try that the broker did not answer.

    Returns:
        None if this message was stored; otherwise the existing message.
    """

    async def store() -> StoredMessage | None:
        try:
            await bus.publish(subject, body, headers, expect=0)
        except ConflictError:
            # A replicated stream also refuses the publish while an earlier publish is pending, which may still fail. So
            # read the subject.
            if (there := await bus.last("results", subject)) is None:
                raise BusUnavailableError(
                    f"{subject} was refused and is still empty; the publish is repeated"
                ) from None
            return there
        return None

    return await retry_while_unavailable(store, clock)


async def publish_with_retry(
    bus: Bus,
    subject: str,
    body: bytes,
    headers: Mapping[str, str],
    *,
    expect: int | None = None,
) -> None:
    """Store one message. If the broker does not answer, try again; `expect` or a message id prevents a second copy.

    The broker drops a message whose message id was used shortly before, even if another publisher used it. The id is
    random, so that no other publisher can guess it and suppress the message.

    Raises:
        PublishOutcomeUnknownError: The broker did not answer three tries in a row.
    """
    message_id = new_id(_MESSAGE_ID_BYTES) if expect is None else None
    once = partial(bus.publish, subject, body, headers, expect=expect, message_id=message_id)
    for _ in range(_MAX_TRIES - 1):
        with suppress(PublishOutcomeUnknownError):
            await once()
            return
    await once()


_MESSAGE_ID_BYTES = 16
_MAX_TRIES = 3  # a publish without an answer is repeated with the same id; three tries without an answer are an outage
