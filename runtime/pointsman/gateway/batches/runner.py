"""Run the batches of a namespace: each gateway follows all records, and takes those that no gateway feeds."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import aclosing, suppress
from datetime import UTC, datetime, timedelta
from time import monotonic

from pointsman.engine.log.reader import as_async_generator
from pointsman.errors import BusUnavailableError, ConflictError, PointsmanError
from pointsman.gateway.batches.feed import BatchFeed, FeedLostError
from pointsman.gateway.batches.records import BatchRecord, StoredRecord, parse_record, store_record
from pointsman.gateway.context import Context
from pointsman.ports.key_value import KeyValue
from pointsman.telemetry import get_logger

__all__ = ["BatchRunner"]

_log = get_logger(__name__)

_SILENT_BEATS = 4  # heartbeats without a write of the feeder after which another gateway takes the batch
_LOOK_S = 0.5  # seconds between looks for batches without a feeder
_RETRY_PAUSE_S = 1.0  # seconds before the bucket is followed again after an error of the broker
_MAX_FEEDS = 20  # batches that one gateway feeds at a time
_RELEASE_TIMEOUT_S = 2.0
_KEPT = timedelta(days=7)  # the time for which the record of a batch that has ended is kept


class BatchRunner:
    """The batches of a namespace, as one gateway sees them.

    A gateway counts the silence of a feeder by its own clock, from the last change of the record that it has read. So
    the clocks of the gateways need not agree. Two feeders of a batch at the same time do no row twice: the id of its
    request follows from the batch.

    Args:
        context: The parts of the gateway.
        bucket: The bucket of the records.
    """

    def __init__(self, context: Context, bucket: KeyValue) -> None:
        self._context = context
        self.bucket = bucket
        self._me = secrets.token_hex(8)
        self._records: dict[str, tuple[StoredRecord, float]] = {}  # with the time of the last change
        self._feeds: dict[str, tuple[BatchFeed, asyncio.Task[None]]] = {}
        self._revision = 0

    def records(self) -> list[BatchRecord]:
        """Return the records, the newest batch first."""
        found = [stored.record for stored, _ in self._records.values()]
        return sorted(found, key=lambda record: record.created_at, reverse=True)

    async def run(self) -> None:
        """Follow the records and feed batches, until cancelled. Then other gateways take the batches of this one."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._follow())
                group.create_task(self._look())
        finally:
            feeds = list(self._feeds.values())
            for _, task in feeds:
                task.cancel()
            await asyncio.gather(*(task for _, task in feeds), return_exceptions=True)
            with suppress(TimeoutError, PointsmanError):
                async with asyncio.timeout(_RELEASE_TIMEOUT_S):
                    await asyncio.gather(*(feed.release() for feed, task in feeds if task.cancelled()))

    async def _follow(self) -> None:
        while True:
            try:
                async with aclosing(as_async_generator(self.bucket.follow(self._revision))) as changes:
                    async for entry in changes:
                        self._revision = max(self._revision, entry.revision)
                        stored = parse_record(entry)
                        if stored is None:
                            self._records.pop(entry.key, None)
                            continue
                        self._records[entry.key] = stored, monotonic()
                        if stored.record.cancelled and (running := self._feeds.get(entry.key)) is not None:
                            running[0].cancel()
            except BusUnavailableError as error:
                _log.info("gateway_batches_unavailable", error=str(error), hint="it is tried again")
            await asyncio.sleep(_RETRY_PAUSE_S)

    async def _look(self) -> None:
        silence = _SILENT_BEATS * self._context.settings.heartbeat
        await self._context.index.current.wait()
        while True:
            try:
                for id, (stored, seen) in list(self._records.items()):
                    record = stored.record
                    if record.ended_at is not None:
                        if datetime.now(UTC) - record.ended_at > _KEPT:
                            await self.bucket.delete(id)
                        continue
                    silent = not record.feeder or monotonic() - seen > silence
                    if silent and id not in self._feeds and len(self._feeds) < _MAX_FEEDS:
                        await self._take(stored)
            except BusUnavailableError as error:
                _log.info("gateway_batches_unavailable", error=str(error), hint="it is tried again")
            await asyncio.sleep(_LOOK_S)

    async def _take(self, stored: StoredRecord) -> None:
        """Become the feeder of a batch, unless another gateway was faster."""
        record = stored.record.model_copy(update={"feeder": f"{self._me}-{stored.revision}"})
        try:
            mine = await store_record(self.bucket, record, stored.revision)
        except ConflictError:
            return
        feed = BatchFeed(self._context, self.bucket, mine)
        self._feeds[record.id] = feed, asyncio.create_task(self._run_feed(feed, record.id))

    async def _run_feed(self, feed: BatchFeed, id: str) -> None:
        try:
            await feed.run()
        except FeedLostError:
            _log.info("gateway_batch_lost", batch=id, hint="another gateway feeds it")
        except Exception as error:  # the broker is unavailable, or a fault of this program
            _log.warning("gateway_batch_interrupted", batch=id, error=str(error), hint="a gateway takes it again")
        finally:
            del self._feeds[id]
