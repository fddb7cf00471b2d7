"""Run the batches of a namespace: follow all records, and feed batches that have no feeder."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from time import monotonic

from pointsman.batches.feed import BatchFeed, BatchParts, FeedLostError
from pointsman.batches.records import BatchRecord, StoredRecord, parse_record, store_record
from pointsman.engine.log.bucket_follower import follow_bucket
from pointsman.errors import BusUnavailableError, ConflictError, PermissionDeniedError, PointsmanError
from pointsman.ports.key_value import KeyValueEntry
from pointsman.telemetry import get_logger
from pointsman.util.signal import Signal

__all__ = ["BatchRunner"]

_log = get_logger(__name__)

_SILENT_BEATS = 4  # number of heartbeats that a feeder may miss before another process feeds the batch
_SEARCH_INTERVAL_S = 0.5  # seconds between searches for batches without a feeder
_MAX_FEEDS = 20  # largest number of batches that one process feeds at a time
# Largest number of batches of one caller that one process feeds at a time. Without this bound, batches that wait for
# the daily limit of one caller could use all places.
_MAX_OF_CALLER = _MAX_FEEDS // 4
_RELEASE_TIMEOUT_S = 2.0
_KEPT = timedelta(days=7)  # time from the end of a batch to the deletion of its record


class BatchRunner(Signal):
    """The batches of a namespace in the memory of one process. A change of any record wakes the waiting tasks.

    If a record has not changed for some time, its feeder has stopped, and this process can feed the batch. A process
    measures this time by its own clock, so the clocks of the processes can differ. If two processes feed a batch at the
    same time, no row is done twice: the id of a request consists of the id of the batch and the number of the row, so
    both processes send the same request.

    Args:
        parts: The parts of the process.
    """

    def __init__(self, parts: BatchParts) -> None:
        super().__init__()
        self._parts = parts
        self._bucket = parts.bucket
        self._me = secrets.token_hex(8)
        self._records: dict[str, tuple[StoredRecord, float]] = {}  # each with the time of the last change
        self._feeds: dict[str, tuple[BatchFeed, asyncio.Task[None]]] = {}
        self._denied: set[str] = set()  # batches for which this process lacks a permission

    def records(self) -> list[BatchRecord]:
        """Return the records, the newest batch first."""
        found = [stored.record for stored, _ in self._records.values()]
        return sorted(found, key=lambda record: record.created_at, reverse=True)

    def add(self, stored: StoredRecord) -> None:
        """Add a record that this process has stored. Later the watch of the bucket delivers the same record.

        Args:
            stored: The record.
        """
        self._records[stored.record.id] = stored, monotonic()
        self.notify()

    async def run(self) -> None:
        """Follow the records and feed batches, until cancelled. Then release the batches for other processes."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(follow_bucket(self._bucket, self._apply, content="batches"))
                group.create_task(self._look())
        finally:
            feeds = list(self._feeds.values())
            for _, task in feeds:
                task.cancel()
            await asyncio.gather(*(task for _, task in feeds), return_exceptions=True)
            with suppress(TimeoutError, PointsmanError):
                async with asyncio.timeout(_RELEASE_TIMEOUT_S):
                    await asyncio.gather(*(feed.release() for feed, task in feeds if task.cancelled()))

    def _apply(self, entry: KeyValueEntry) -> None:
        stored = parse_record(entry)
        if stored is None:
            self._records.pop(entry.key, None)
        else:
            self._records[entry.key] = stored, monotonic()
            if (stored.record.cancelled or stored.record.paused) and entry.key in self._feeds:
                self._feeds[entry.key][0].stop()
        self.notify()

    async def _look(self) -> None:
        silence = _SILENT_BEATS * self._parts.heartbeat
        await self._parts.index.current.wait()
        while True:
            try:
                for id, (stored, seen) in list(self._records.items()):
                    if id in self._feeds or id in self._denied:
                        continue
                    try:
                        await self._look_at(stored, silent=monotonic() - seen > silence)
                    except PermissionDeniedError as error:
                        self._deny(id, error)
            except BusUnavailableError as error:
                _log.info(
                    "batches_unavailable", error=str(error), hint="the gateway or dashboard reads the batches again"
                )
            await asyncio.sleep(_SEARCH_INTERVAL_S)

    async def _look_at(self, stored: StoredRecord, *, silent: bool) -> None:
        """Feed a batch that has no feeder. Delete the record of a batch that ended long ago."""
        record = stored.record
        if record.ended_at is not None:
            if datetime.now(UTC) - record.ended_at > _KEPT:
                await self._bucket.delete(record.id)
        elif (silent or not record.feeder) and (record.cancelled or not record.paused) and self._has_room(record):
            await self._take(stored)

    def _has_room(self, record: BatchRecord) -> bool:
        own = sum(feed.caller == record.caller for feed, _ in self._feeds.values())
        return len(self._feeds) < _MAX_FEEDS and own < _MAX_OF_CALLER

    async def _take(self, stored: StoredRecord) -> None:
        """Become the feeder of a batch, if no other process has become the feeder first."""
        record = stored.record.model_copy(update={"feeder": f"{self._me}-{stored.revision}"})
        try:
            mine = await store_record(self._bucket, record, stored.revision)
        except ConflictError:
            return
        feed = BatchFeed(self._parts, mine)
        self._feeds[record.id] = feed, asyncio.create_task(self._run_feed(feed, record.id))

    async def _run_feed(self, feed: BatchFeed, id: str) -> None:
        try:
            await feed.run()
        except FeedLostError:
            _log.info("batch_lost", batch=id, hint="another process feeds the batch")
        except PermissionDeniedError as error:
            self._deny(id, error)
            with suppress(PointsmanError):
                await feed.release()
        except Exception as error:  # the broker is unavailable, or there is an unexpected error
            _log.warning(
                "batch_interrupted", batch=id, error=str(error), hint="a gateway or dashboard continues the batch"
            )
        finally:
            del self._feeds[id]

    def _deny(self, id: str, error: PermissionDeniedError) -> None:
        self._denied.add(id)
        _log.warning(
            "batch_denied",
            batch=id,
            error=str(error),
            hint="a gateway or dashboard with the right to submit feeds the batch",
        )
