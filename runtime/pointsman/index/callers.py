"""Count the running workflows and the daily usage of each caller, and refuse requests that exceed a limit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from itertools import count
from time import monotonic

from pydantic import BaseModel, ConfigDict, Field

from pointsman.errors import PointsmanError
from pointsman.index.rows import WorkflowRow
from pointsman.settings import Settings
from pointsman_schemas.events import Usage
from pointsman_schemas.log import Entry

__all__ = ["CallerLimitError", "CallerLimits", "CallerUsage", "OpenCounts"]

_MAX_UNSEEN_S = 3_600.0  # seconds for which a published request counts as running although its log has not arrived
_RUNNING_RETRY_S = 5  # seconds after which a caller with too many running workflows may try again


class CallerLimits(BaseModel):
    """The limits of a caller. None means the default of the gateway."""

    model_config = ConfigDict(frozen=True)

    requests_per_minute: int | None = Field(default=None, ge=1, description="Requests per minute at one gateway.")
    running: int | None = Field(default=None, ge=1, description="Number of running workflows.")
    daily_calls: int | None = Field(default=None, ge=0, description="Number of model calls in a day (UTC).")
    daily_tokens: int | None = Field(default=None, ge=0, description="Number of tokens in a day (UTC).")
    daily_cost: float | None = Field(default=None, ge=0, description="Cost in a day (UTC), in US dollars.")

    def over(self, settings: Settings) -> CallerLimits:
        """Return the limits, with each None replaced by the default of the settings.

        Args:
            settings: The settings.
        """
        return CallerLimits(
            requests_per_minute=self.requests_per_minute or settings.gateway_requests_per_minute,
            running=self.running or settings.gateway_running,
            daily_calls=settings.gateway_daily_calls if self.daily_calls is None else self.daily_calls,
            daily_tokens=settings.gateway_daily_tokens if self.daily_tokens is None else self.daily_tokens,
            daily_cost=settings.gateway_daily_cost if self.daily_cost is None else self.daily_cost,
        )


class CallerLimitError(PointsmanError):
    """A limit of the caller is reached, so the request was not sent.

    Args:
        kind: The limit as one word.
        message: The cause, and the remedy.
        retry_after: Seconds after which the caller may try again.
    """

    def __init__(self, kind: str, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.kind = kind
        self.retry_after = retry_after


class OpenCounts:
    """The number of open requests or uploads of each caller in this process."""

    def __init__(self) -> None:
        self._open = Counter[str]()

    def __getitem__(self, caller: str) -> int:
        return self._open[caller]

    @contextmanager
    def one_more(self, caller: str) -> Iterator[None]:
        """Count one more request or upload of a caller inside the `with` block.

        Args:
            caller: The caller.

        Yields:
            Nothing.
        """
        self._open[caller] += 1
        try:
            yield
        finally:
            self._open[caller] -= 1
            if not self._open[caller]:
                del self._open[caller]


class CallerUsage:
    """The running workflows of each caller, and the usage of the caller's workflows that ended today (UTC)."""

    def __init__(self) -> None:
        self._running: dict[str, set[str]] = {}
        # The requests of this process whose log has not arrived yet: by workflow, the caller and the time.
        self._unseen: dict[str, tuple[str, float]] = {}
        self._reservations = count()
        self._day = date.min
        self._used: dict[str, Usage] = {}

    def running(self, caller: str) -> int:
        """Count the running workflows of a caller, including requests of this process that have not begun.

        Args:
            caller: The caller.

        Returns:
            The number.
        """
        limit = monotonic() - _MAX_UNSEEN_S
        self._unseen = {id: seen for id, seen in self._unseen.items() if seen[1] > limit}
        unseen = sum(1 for name, _ in self._unseen.values() if name == caller)
        return len(self._running.get(caller, ())) + unseen

    def used_today(self, caller: str) -> Usage:
        """Return the usage of the workflows of a caller that ended today (UTC).

        Args:
            caller: The caller.

        Returns:
            The usage.
        """
        return self._used.get(caller, Usage()) if self._day == _now().date() else Usage()

    def check(self, caller: str, limits: CallerLimits) -> None:
        """Refuse a request for a new workflow that exceeds a limit of the caller.

        Args:
            caller: The caller.
            limits: The limits.

        Raises:
            CallerLimitError: A limit is reached.
        """
        if limits.running is not None and (running := self.running(caller)) >= limits.running:
            raise CallerLimitError(
                "too_many_running",
                f"{caller} has {running} of {limits.running} running workflows; wait until a workflow ends, or cancel "
                f"a workflow",
                _RUNNING_RETRY_S,
            )
        used = self.used_today(caller)
        for name, amount, limit in (
            ("calls", used.calls, limits.daily_calls),
            ("tokens", used.tokens, limits.daily_tokens),
            ("cost", used.cost, limits.daily_cost),
        ):
            if limit is not None and amount >= limit:
                raise CallerLimitError(
                    f"daily_{name}_used",
                    f"{caller} has used {amount:g} of {limit:g} {name} today (UTC); the limit begins again at midnight",
                    _seconds_to_midnight(),
                )

    @contextmanager
    def reserved(self, caller: str, limits: CallerLimits) -> Iterator[None]:
        """Check the limits, and count a new workflow as running while its request is sent.

        Without the reservation, simultaneous requests would all pass the check before the first of them is counted.

        Args:
            caller: The caller.
            limits: The limits.

        Yields:
            Nothing. Send the request, and call `submitted`, inside the `with` block.

        Raises:
            CallerLimitError: A limit is reached.
        """
        self.check(caller, limits)
        place = f"> {next(self._reservations)}"  # counts like a workflow, but cannot be the id of a workflow
        self.submitted(caller, place)
        try:
            yield
        finally:
            self._unseen.pop(place, None)

    def submitted(self, caller: str, workflow: str) -> None:
        """Count a request of this process as running until its log arrives.

        Args:
            caller: The caller.
            workflow: The workflow of the request.
        """
        self._unseen[workflow] = caller, monotonic()

    def began(self, row: WorkflowRow) -> None:
        """Count a workflow as running.

        Args:
            row: The workflow.
        """
        self._unseen.pop(row.id, None)
        if not row.imported:
            self._running.setdefault(row.caller, set()).add(row.id)

    def stopped(self, row: WorkflowRow) -> None:
        """Stop counting a workflow as running.

        Args:
            row: The workflow.
        """
        if (ids := self._running.get(row.caller)) is not None:
            ids.discard(row.id)
            if not ids:
                del self._running[row.caller]

    def apply(self, row: WorkflowRow, entry: Entry) -> None:
        """Apply an entry of the log of a workflow.

        Args:
            row: The workflow. Apply the entry to the row first, because the usage of the row is counted.
            entry: The entry.
        """
        match entry.kind:
            case "workflow_resumed":
                self.began(row)
            case "workflow_ended":
                self.stopped(row)
                before, row.earlier_usage = row.earlier_usage, row.usage
                today = _now().date()
                if today != self._day:
                    self._day = today
                    self._used.clear()
                if entry.at.astimezone(UTC).date() == today and not row.imported:
                    self._used[row.caller] = self._used.get(row.caller, Usage()) + (row.usage - before)
            case _:
                return

    def reset(self) -> None:
        """Forget all workflows, because the log is read again."""
        self._running.clear()
        self._used.clear()


def _now() -> datetime:
    return datetime.now(UTC)


def _seconds_to_midnight() -> int:
    now = _now()
    return int((datetime.combine(now.date() + timedelta(days=1), datetime.min.time(), UTC) - now).total_seconds()) + 1
