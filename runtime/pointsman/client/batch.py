"""Send the rows of a batch as requests to a team, a limited number at a time. Yield each row when its workflow ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from pydantic import JsonValue

from pointsman.client.workflow import Workflow
from pointsman.errors import ContractError
from pointsman_schemas.events import Budget, Outcome
from pointsman_schemas.subjects import Subjects

__all__ = ["BatchInput", "BatchRow", "run_batch"]

BatchInput: TypeAlias = str | Mapping[str, JsonValue]
"""The request of one row: a text or an object."""

_Given: TypeAlias = BatchInput | ContractError


@dataclass(frozen=True, slots=True)
class BatchRow:
    """A row of a batch whose workflow has ended, or whose request could not be sent.

    Attributes:
        row: The number of the row, from 1.
        request_id: The id of the request.
        workflow_id: The workflow; empty if the request could not be sent.
        outcome: The outcome of the workflow; None if the request could not be sent.
        error: The reason why the request could not be sent; empty if it was sent.
    """

    row: int
    request_id: str
    workflow_id: str = ""
    outcome: Outcome | None = None
    error: str = ""

    @property
    def status(self) -> str:
        """The status of the outcome, or `not_sent`."""
        return self.outcome.status if self.outcome else "not_sent"

    @property
    def problem(self) -> str:
        """The reason why the row did not complete; empty for a completed row."""
        if self.outcome is None:
            return self.error
        if self.outcome.status == "completed":
            return ""
        return self.outcome.reason or "; ".join(gap.reason for gap in self.outcome.gaps)


class Submitter(Protocol):
    """The part of a client that a batch uses."""

    subjects: Subjects

    async def submit(
        self, team: str, input: BatchInput, *, request_id: str, deadline: float | None, budget: Budget | None
    ) -> Workflow:
        """Publish a request and return its workflow."""
        ...


async def run_batch(
    client: Submitter,
    team: str,
    inputs: Iterable[_Given] | AsyncIterable[_Given],
    *,
    batch_id: str,
    concurrency: int,
    skip: Container[int] = frozenset(),
    deadline: float | None = None,
    budget: Budget | None = None,
) -> AsyncGenerator[BatchRow, None]:
    """Send each input as a request, and yield each row when its workflow has ended.

    An input is read only when fewer than `concurrency` workflows run, and a yielded row is not stored. So the memory
    does not grow with the number of rows.

    Args:
        client: The client.
        team: The team.
        inputs: The requests. A `ContractError` in place of a request becomes the error of its row.
        batch_id: The id of the batch. The id of each request consists of this id and the number of the row.
        concurrency: The largest number of workflows at a time.
        skip: Numbers of rows that are read but not sent.
        deadline: The time limit of each workflow, in seconds. Default: the team's deadline.
        budget: Limits of each workflow, in addition to the team's limits.

    Yields:
        The rows, in the order in which they end.

    Raises:
        ValueError: The concurrency is below 1.
        ContractError: The name of the team is not valid.
        BusUnavailableError: The broker does not answer.
    """
    if concurrency < 1:
        raise ValueError(f"the concurrency is {concurrency}; at least 1 is needed")

    client.subjects.team_requests(team)  # raises for an invalid name, which must end the batch and not only its row

    async def serve(row: int, given: _Given) -> BatchRow:
        request_id = f"{batch_id}-{row}"
        if isinstance(given, ContractError):
            return BatchRow(row, request_id, error=str(given))
        try:
            workflow = await client.submit(team, given, request_id=request_id, deadline=deadline, budget=budget)
        except ContractError as error:
            return BatchRow(row, request_id, error=str(error))
        return BatchRow(row, request_id, workflow.id, await workflow.outcome())

    rows = _numbered(inputs, skip)
    running: set[asyncio.Task[BatchRow]] = set()
    reading: asyncio.Task[tuple[int, _Given] | None] | None = None
    more = True
    try:
        while more or running:
            if more and reading is None and len(running) < concurrency:
                reading = asyncio.ensure_future(anext(rows, None))
            await asyncio.wait([*running, *([reading] if reading else [])], return_when=asyncio.FIRST_COMPLETED)
            if reading is not None and reading.done():
                found, reading = reading.result(), None
                if found is None:
                    more = False
                else:
                    running.add(asyncio.ensure_future(serve(*found)))
            for task in [each for each in running if each.done()]:
                running.discard(task)
                yield task.result()
    finally:
        left = [*running, *([reading] if reading else [])]
        for each in left:
            each.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await rows.aclose()


async def _numbered(
    inputs: Iterable[_Given] | AsyncIterable[_Given], skip: Container[int]
) -> AsyncGenerator[tuple[int, _Given], None]:
    """Yield the number and the input of each row that is not in `skip`."""
    row = 0
    if isinstance(inputs, AsyncIterable):
        async for given in inputs:
            row += 1
            if row not in skip:
                yield row, given
        return
    for given in inputs:
        row += 1
        if row not in skip:
            yield row, given
