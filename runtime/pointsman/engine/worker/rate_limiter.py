"""Limits of model providers that all processes of a namespace share.

For each API key and model, one message has the state of the limits. To acquire or release, a process replaces the
message by compare-and-set. After a conflict, the process reads the message and retries.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import uuid4

from pydantic import ValidationError

from pointsman.authoring.ports import CallPermit
from pointsman.core.budget.token_bucket import BucketState, ModelLimits, acquire, release
from pointsman.engine.process.retrying import retry_while_unavailable
from pointsman.engine.worker.executors import run_on_loop
from pointsman.errors import ConflictError, ModelError, PointsmanError, describe_error
from pointsman.ports.bus import Bus
from pointsman.ports.clock import Clock
from pointsman.ports.model import Model
from pointsman.telemetry import get_logger
from pointsman_schemas.ids import derive_id
from pointsman_schemas.strict_json import dump
from pointsman_schemas.subjects import Subjects

__all__ = ["BusRateLimiter"]

_log = get_logger(__name__)

_MAX_CALL_S = 300.0  # seconds after which a call without a release counts as ended, because its process may have died
_CLOSE_TIMEOUT_S = 0.5  # seconds at shutdown in which pending releases may complete
_JITTER_S = 0.02  # seconds of random delay that separate the retries of waiting calls


@dataclass(slots=True)
class _Bucket:
    subject: str
    limits: ModelLimits
    known: BucketState | None = None
    sequence: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class BusRateLimiter:
    """Rate limiter whose state is stored on the bus.

    Args:
        bus: Connection to the bus.
        subjects: Subjects of the namespace.
        limits: Limits by `provider:model`, or by `provider` for each of its models.
        clock: Clock of the worker.
    """

    def __init__(self, bus: Bus, subjects: Subjects, limits: Mapping[str, ModelLimits], clock: Clock) -> None:
        self._bus = bus
        self._subjects = subjects
        self._limits = limits
        self._clock = clock
        self._buckets: dict[str, _Bucket] = {}
        self._loop = asyncio.get_running_loop()
        self._releases: set[asyncio.Task[None]] = set()

    async def acquire(self, model: Model, tokens: int, patience: float) -> CallPermit | None:
        meter = self._bucket(model)
        if meter is None:
            return None
        call = uuid4().hex[:12]

        def done(used: int, retry_after: float | None) -> None:
            with suppress(RuntimeError):  # the loop of the worker is closed
                self._loop.call_soon_threadsafe(self._release, meter, call, tokens - used, retry_after)

        try:
            await run_on_loop(
                self._loop, self._acquire(meter, call, tokens, patience, f"{model.provider}:{model.name}")
            )
        except asyncio.CancelledError:
            done(0, None)  # release, because the broker may already have stored the acquisition
            raise
        return CallPermit(done)

    async def close(self) -> None:
        """Wait a limited time for the pending releases."""
        if self._releases:
            await asyncio.wait(self._releases, timeout=_CLOSE_TIMEOUT_S)

    def _bucket(self, model: Model) -> _Bucket | None:
        limits = self._limits.get(f"{model.provider}:{model.name}") or self._limits.get(model.provider)
        if limits is None:
            return None
        name = derive_id("limit", model.provider, model.name, model.account)
        if name not in self._buckets:
            self._buckets[name] = _Bucket(self._subjects.limit(name), limits)
        return self._buckets[name]

    async def _acquire(self, meter: _Bucket, call: str, tokens: int, patience: float, name: str) -> None:
        began = self._clock.monotonic()
        while True:
            now = self._clock.now()
            until = now + timedelta(seconds=_MAX_CALL_S)
            wait = await self._update(
                meter,
                lambda known: acquire(known, meter.limits, now, call, tokens, until),  # noqa: B023  # called in this iteration
            )
            if wait is None:
                return
            left = patience - (self._clock.monotonic() - began)
            if wait >= left:
                raise ModelError(
                    f"the limits of {name} allow no call within the remaining {max(left, 0):.1f} s; raise the limits "
                    "in POINTSMAN_MODEL_LIMITS, or give the task more time",
                    retryable=True,
                    retry_after=wait,
                    kind="rate_limited",
                )
            await self._clock.sleep(wait + random.uniform(0, _JITTER_S))

    def _release(self, meter: _Bucket, call: str, tokens: int, closed: float | None) -> None:
        async def back() -> None:
            try:
                await self._update(
                    meter, lambda known: release(known, meter.limits, self._clock.now(), call, tokens, closed)
                )
            except PointsmanError as error:
                _log.warning(
                    "model_limit_release_failed",
                    subject=meter.subject,
                    error=describe_error(error),
                    hint=f"the capacity of the call is free again in {_MAX_CALL_S:g} s",
                )

        task = self._loop.create_task(back())
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    async def _update(
        self, meter: _Bucket, change: Callable[[BucketState | None], BucketState | float]
    ) -> float | None:
        """Store the change and return None. If the limits allow no call now, return the seconds to wait."""

        async def once() -> float | None:
            while True:
                wanted = change(meter.known)
                if not isinstance(wanted, BucketState):
                    if meter.sequence != await self._read(meter):
                        continue  # the decision was based on an outdated state
                    return wanted
                try:
                    meter.sequence = await self._bus.publish(meter.subject, dump(wanted), {}, expect=meter.sequence)
                except ConflictError:
                    await self._read(meter)
                else:
                    meter.known = wanted
                    return None

        async with meter.lock:
            return await retry_while_unavailable(once, self._clock)

    async def _read(self, meter: _Bucket) -> int:
        stored = await self._bus.last("limits", meter.subject)
        meter.sequence = stored.sequence if stored else 0
        try:
            meter.known = BucketState.model_validate_json(stored.body) if stored else None
        except ValidationError:  # another release wrote the state, which is then overwritten
            meter.known = None
        return meter.sequence
