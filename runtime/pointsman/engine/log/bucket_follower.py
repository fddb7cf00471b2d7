"""Follow a key-value bucket with a state in memory: apply the present values, then each change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing

from pointsman.engine.log.reader import as_async_generator
from pointsman.errors import BusUnavailableError
from pointsman.ports.key_value import KeyValue, KeyValueEntry
from pointsman.telemetry import get_logger

__all__ = ["follow_bucket"]

_log = get_logger(__name__)

_RETRY_PAUSE_S = 1.0  # seconds before the bucket is followed again after an error of the broker


async def follow_bucket(bucket: KeyValue, apply: Callable[[KeyValueEntry], None], *, content: str) -> None:
    """Call `apply` with the newest change of each key, and with each further change, until cancelled.

    Args:
        bucket: The bucket.
        apply: Applies a change to the state. After an error of the broker, the same change might be applied again.
        content: The content of the bucket, for log events.
    """
    revision = 0

    while True:
        try:
            async with aclosing(as_async_generator(bucket.follow(revision))) as changes:
                async for entry in changes:
                    apply(entry)
                    revision = entry.revision  # lower than before in a bucket that was created again
        except BusUnavailableError as error:
            _log.info("bucket_unavailable", content=content, error=str(error), hint="the read is repeated")
        await asyncio.sleep(_RETRY_PAUSE_S)
