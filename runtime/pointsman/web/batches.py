"""Run batches in the process of the dashboard: the rows of an uploaded file, each a request of its own.

A batch is not durable: files and progress are in a temporary folder of this process. Its rows are durable. The id of
each request follows from the content of the file, the team, the mapping and the number of the row. So a file that is
uploaded again, to any dashboard, waits for the workflows of the first time, and does no row twice.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pointsman.client.batch import BatchRow, run_batch
from pointsman.client.batch_files import BatchRecord, Mapper, RequestFile
from pointsman.client.client import Client
from pointsman.errors import ConfigurationError, ContractError, NotFoundError, PointsmanError
from pointsman.telemetry import get_logger
from pointsman.util.signal import Signal

__all__ = ["MAX_BATCH_ROWS", "Batch", "Batches", "BusyError"]

MAX_BATCH_ROWS = 10_000
"""Default of the largest number of rows of a batch."""

_MAX_UPLOAD_BYTES = 32 * 1024 * 1024
_MAX_RESULT_BYTES = 512 * 1024 * 1024  # of one batch; then it stops
_MAX_RUNNING = 4  # batches at a time
_MAX_KEPT = 20  # batches with their files; the oldest one that does not run makes place for a new one
_MAX_CONCURRENCY = 100  # workflows of one batch at a time
_MAX_PROBLEMS = 50  # newest rows that did not complete, on the page; the results have all of them
_MAX_PROBLEM_CHARS = 300
_SUFFIXES = (".csv", ".jsonl", ".ndjson")

Status: TypeAlias = Literal["running", "ended", "stopped", "failed"]
_log = get_logger(__name__)


class BusyError(PointsmanError):
    """The dashboard runs as many batches as it may. Nothing was sent."""

    kind = "busy"


@dataclass(slots=True)
class Batch:
    """One batch. `record` has the rows that ended; `folder` has the file and the results."""

    id: str
    client: Client
    team: str
    name: str
    requests: RequestFile
    concurrency: int
    folder: Path
    record: BatchRecord
    started_at: datetime
    status: Status = "running"
    error: str = ""
    ended_at: datetime | None = None
    problems: list[dict[str, Any]] = field(default_factory=list)
    """The newest rows that did not complete."""
    task: asyncio.Task[None] | None = None

    @property
    def results(self) -> Path:
        """The file of the results: a JSON object for each row that has ended."""
        return self.folder / "results.jsonl"

    def as_json(self) -> dict[str, Any]:
        """Return the batch as data for the page."""
        done = len(self.record.ended)
        return {
            "id": self.id,
            "team": self.team,
            "user": self.client.user,
            "name": self.name,
            "status": self.status,
            "error": self.error,
            "rows": self.requests.rows,
            "done": done,
            "completed": self.record.completed,
            "tokens": self.record.tokens,
            "cost": self.record.cost,
            "concurrency": self.concurrency,
            "problems": self.problems,
            "problem_count": done - self.record.completed,
            "started_at": self.started_at,
            "ended_at": self.ended_at,
        }


class Batches(Signal):
    """The batches of one dashboard.

    Args:
        max_rows: Largest number of rows of a batch.
    """

    def __init__(self, max_rows: int = MAX_BATCH_ROWS) -> None:
        super().__init__()
        self._max_rows = max_rows
        self._folder: Path | None = None
        self._batches: dict[str, Batch] = {}  # in the order of their start

    async def run(self) -> None:
        """Keep the batches until cancelled. Then all of them stop, and their files are removed."""
        try:
            await asyncio.Event().wait()
        finally:
            tasks = [batch.task for batch in self._batches.values() if batch.task]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for batch in self._batches.values():
                batch.record.close()
            if self._folder is not None:
                await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    def as_json(self) -> list[dict[str, Any]]:
        """Return the batches as data for the page, the newest first."""
        return [batch.as_json() for batch in reversed(self._batches.values())]

    def find(self, id: str) -> Batch:
        """Return a batch.

        Args:
            id: The id.

        Returns:
            The batch.

        Raises:
            NotFoundError: This dashboard has no such batch.
        """
        if (batch := self._batches.get(id)) is None:
            raise NotFoundError(f"this dashboard has no batch {id!r}; upload its file again to see its results")
        return batch

    async def start(
        self,
        client: Client,
        team: str,
        name: str,
        content: AsyncIterable[bytes],
        *,
        mapping: Sequence[str] = (),
        concurrency: int = 10,
    ) -> Batch:
        """Receive a file, and run its rows.

        Args:
            client: The client of the user, whose requests the rows become.
            team: The team.
            name: The name of the file, which ends with `.csv`, `.jsonl` or `.ndjson`.
            content: The content.
            mapping: The mapping of columns to a request: one COLUMN, or FIELD=COLUMN for each field.
            concurrency: Largest number of workflows at a time, 1 to 100.

        Returns:
            The batch. If the same user has uploaded the same file for the same team before, that batch goes on.

        Raises:
            ContractError: The file, the mapping or the number is not valid, or the file is too large.
            BusyError: Too many batches run.
        """
        if not 1 <= concurrency <= _MAX_CONCURRENCY:
            raise ContractError(f"{concurrency} workflows at a time are not possible; give 1 to {_MAX_CONCURRENCY}")
        self._check_room()
        folder = await self._new_folder()
        try:
            path = folder / f"requests{Path(name).suffix.lower()}"
            await _save(path, name, content)
            requests = await self._open(path, name, mapping)
            found = self._batches.get(id := f"{client.user}-{requests.batch_id(team)}")
            if found is not None:
                shutil.rmtree(folder, ignore_errors=True)
                self._begin(found)
                return found
            record = BatchRecord(folder / "results.jsonl", requests.batch_id(team))
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        batch = Batch(id, client, team, name, requests, concurrency, folder, record, datetime.now(UTC))
        self._batches[id] = batch
        self._begin(batch)
        self._drop_old()
        return batch

    def resume(self, batch: Batch) -> None:
        """Go on with a batch that was stopped or failed. A batch that runs or has ended is unchanged.

        Args:
            batch: The batch.

        Raises:
            BusyError: Too many batches run.
        """
        self._begin(batch)

    async def stop(self, batch: Batch) -> None:
        """Send no further rows. Workflows that run go on, and `resume` waits for them.

        Args:
            batch: The batch.
        """
        if batch.task is not None:
            batch.task.cancel()
            await asyncio.gather(batch.task, return_exceptions=True)

    def _begin(self, batch: Batch) -> None:
        if batch.task is not None or batch.status == "ended":
            return
        self._check_room()
        batch.status, batch.error, batch.ended_at = "running", "", None
        batch.task = asyncio.create_task(self._run_batch(batch))
        self.notify()

    async def _run_batch(self, batch: Batch) -> None:
        rows = run_batch(
            batch.client,
            batch.team,
            batch.requests.requests(),
            batch_id=batch.requests.batch_id(batch.team),
            concurrency=batch.concurrency,
            skip=batch.record.ended,
        )
        try:
            async with aclosing(rows):
                async for row in rows:
                    _add(batch, row)
                    self.notify()
            batch.status = "ended"
        except asyncio.CancelledError:
            batch.status = "stopped"
            raise
        except PointsmanError as error:
            batch.status, batch.error = "failed", str(error)
            _log.info("batch_failed", batch=batch.id, error=str(error), hint="its page goes on with it")
        finally:
            batch.task, batch.ended_at = None, datetime.now(UTC)
            self.notify()

    def _check_room(self) -> None:
        if sum(batch.task is not None for batch in self._batches.values()) >= _MAX_RUNNING:
            raise BusyError(
                f"this dashboard runs {_MAX_RUNNING} batches, the most that it may; wait for one, or stop one"
            )

    def _drop_old(self) -> None:
        idle = [batch for batch in self._batches.values() if batch.task is None]
        for batch in idle[: max(0, len(self._batches) - _MAX_KEPT)]:
            del self._batches[batch.id]
            batch.record.close()
            shutil.rmtree(batch.folder, ignore_errors=True)

    async def _new_folder(self) -> Path:
        try:
            if self._folder is None:
                self._folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="pointsman-batches-"))
            return Path(await asyncio.to_thread(tempfile.mkdtemp, dir=self._folder))
        except OSError as error:
            raise ConfigurationError(
                f"the dashboard has no folder for temporary files: {error.strerror or error}; set TMPDIR"
            ) from None

    async def _open(self, path: Path, name: str, mapping: Sequence[str]) -> RequestFile:
        try:
            requests = await asyncio.to_thread(partial(RequestFile.open, path, Mapper.from_options(mapping)))
        except ConfigurationError as error:  # of the user's file, and not of this process
            raise ContractError(str(error).replace(str(path), name)) from None
        if not 1 <= requests.rows <= self._max_rows:
            raise ContractError(
                f"{name} has {requests.rows} rows; 1 to {self._max_rows} are possible here "
                "(POINTSMAN_DASHBOARD_BATCH_ROWS); the command `pointsman batch` has no limit"
            )
        return requests


def _add(batch: Batch, row: BatchRow) -> None:
    batch.record.add(row)
    if batch.results.stat().st_size > _MAX_RESULT_BYTES:
        raise ContractError(f"the results have more than {_MAX_RESULT_BYTES} bytes; use the command `pointsman batch`")
    if problem := row.problem or (row.status if row.status != "completed" else ""):
        found = {"row": row.row, "status": row.status, "reason": problem[:_MAX_PROBLEM_CHARS]}
        batch.problems = [*batch.problems, {**found, "workflow": row.workflow_id}][-_MAX_PROBLEMS:]


async def _save(path: Path, name: str, content: AsyncIterable[bytes]) -> None:
    if path.suffix not in _SUFFIXES:
        raise ContractError(f"{name!r} is not one of {', '.join(_SUFFIXES)}; give a file in one of these formats")
    size = 0
    with path.open("wb") as file:
        async for piece in content:
            size += len(piece)
            if size > _MAX_UPLOAD_BYTES:
                raise ContractError(
                    f"{name} has more than {_MAX_UPLOAD_BYTES} bytes; split it, or use `pointsman batch`"
                )
            file.write(piece)
