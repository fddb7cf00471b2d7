"""Return the HTTP status and headers of an error. The status shows whether the client or the server has failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pointsman.batches.rows import RowsRefusedError, TooLargeRowsError
from pointsman.batches.service import BatchConflictError
from pointsman.engine.log.reader import ImportedLogError
from pointsman.engine.operations.dead_letter_replay import NotReplayableError
from pointsman.engine.operations.messages import MessageRefusedError
from pointsman.engine.operations.resume import NotResumableError
from pointsman.errors import (
    BodyLostError,
    BusUnavailableError,
    BusyThreadError,
    ContractError,
    NotFoundError,
    OversizeEventError,
    PointsmanError,
    ScheduleRefusedError,
)
from pointsman.http.downloads import RangeError
from pointsman.index.callers import CallerLimitError

__all__ = ["headers_of", "status_of"]

_STATUSES: Sequence[tuple[type[PointsmanError], int]] = (
    (NotFoundError, 404),
    (OversizeEventError, 413),
    (TooLargeRowsError, 413),
    (RangeError, 416),
    (BodyLostError, 410),
    (ContractError, 422),
    (NotReplayableError, 409),
    (NotResumableError, 409),
    (MessageRefusedError, 409),
    (ImportedLogError, 409),
    (BusyThreadError, 409),
    (ScheduleRefusedError, 409),
    (BatchConflictError, 409),
    (CallerLimitError, 429),
    (BusUnavailableError, 503),
)


def status_of(error: PointsmanError) -> int:
    """Return the HTTP status of an error.

    Args:
        error: The error.

    Returns:
        The status; 500 for an error that is not in the table of statuses.
    """
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)


def headers_of(error: PointsmanError) -> Mapping[str, str]:
    """Return the HTTP headers of an error.

    Args:
        error: The error.
    """
    match error:
        case CallerLimitError():
            return {"retry-after": str(error.retry_after)}
        case RowsRefusedError():  # a part of the body can be unread, so the connection cannot serve another request
            return {"connection": "close"}
        case RangeError():
            return {"content-range": f"bytes */{error.size}"}
        case _:
            return {"retry-after": "1"} if status_of(error) == 503 else {}
