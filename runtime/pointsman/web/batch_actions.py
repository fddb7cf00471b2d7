"""Upload, pause, resume and cancel batches, and send the results, over HTTP."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any, get_args

from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from pointsman.batches.records import BatchRecord
from pointsman.batches.rows import RowsRefusedError, TooLargeRowsError
from pointsman.batches.service import BatchAction, Batches
from pointsman.client.batch_files import FILE_SUFFIXES, Mapper, RequestFile, result_data
from pointsman.client.client import Client
from pointsman.client.known_teams import check_team
from pointsman.errors import ConfigurationError, ContractError, NotFoundError
from pointsman.web.auth import client_of
from pointsman.web.responses import body_pieces, json_response, parse_number, read_json_object
from pointsman_schemas.ids import token

__all__ = ["BatchActions", "batch_json"]

_MAX_NAME_CHARS = 255
_DEFAULT_CONCURRENCY = 10
_YIELD_EVERY = 200  # number of rows that are read before other tasks of the event loop may run


class BatchActions:
    """The actions of the page of batches.

    Args:
        client: The client of the dashboard.
        batches: The batches of the namespace.
        max_bytes: Largest size of a file, in bytes.
    """

    def __init__(self, client: Client, batches: Batches, max_bytes: int) -> None:
        self._client = client
        self._batches = batches
        self._max_bytes = max_bytes

    async def start(self, request: Request) -> Response:
        """Receive the body as a file of requests, and store the rows as a batch in the name of the user.

        If the user has sent the same file with the same team and mapping before, no new batch is made, unless that
        batch was cancelled.

        Returns:
            The new or the earlier batch.
        """
        given = request.query_params
        client, team = client_of(request, self._client), token(given.get("team", ""), "team")
        await check_team(client, team)
        name = given.get("name", "")[:_MAX_NAME_CHARS]
        mapping = [each.strip() for each in given.getlist("map") if each.strip()]
        folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="pointsman-batch-"))
        try:
            path = folder / f"requests{Path(name).suffix.lower()}"
            async with aclosing(body_pieces(request)) as pieces:
                await _save(path, name, pieces, self._max_bytes)
            requests = await _open(path, name, mapping)
            key: str | None = requests.batch_id(team)
            with suppress(NotFoundError):
                found = await self._batches.find(self._batches.id_of(client.user, str(key)))
                if not found.cancelled:
                    return json_response(batch_json(self._batches, found))
                key = None
            async with aclosing(_lines(requests)) as lines:
                record = await self._batches.create(
                    client.user,
                    team,
                    lines,
                    key=key,
                    name=name,
                    max_row_bytes=client.bus.max_body,
                    concurrency=parse_number(given.get("concurrency", str(_DEFAULT_CONCURRENCY))),
                )
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        return json_response(batch_json(self._batches, record))

    async def change(self, request: Request) -> Response:
        """Pause, resume or cancel a batch.

        Returns:
            The batch.

        Raises:
            NotFoundError: There is no such batch, or no such action.
        """
        await read_json_object(request)
        action = request.path_params["action"]
        if action not in get_args(BatchAction):
            raise NotFoundError(f"{action!r} is not an action; expected {', '.join(get_args(BatchAction))}")
        found = await self._batches.find(request.path_params["id"])
        actor = client_of(request, self._client).user
        return json_response(batch_json(self._batches, await self._batches.change(found.id, action, actor=actor)))

    async def results(self, request: Request) -> Response:
        """Send the results so far as a download.

        Returns:
            A JSON object on each line, in the format of the command `batch`.
        """
        record = await self._batches.find(request.path_params["id"])
        headers = {"content-disposition": f'attachment; filename="{record.id}.jsonl"'}
        return StreamingResponse(self._result_lines(record), headers=headers, media_type="application/x-ndjson")

    async def _result_lines(self, record: BatchRecord) -> AsyncGenerator[bytes, None]:
        async with aclosing(self._batches.results(record)) as rows:
            async for row in rows:
                yield to_json(result_data(row), exclude_none=True) + b"\n"


def batch_json(batches: Batches, record: BatchRecord) -> dict[str, Any]:
    """Return a batch as data for the page.

    Args:
        batches: The batches of the namespace.
        record: The batch.
    """
    counts, usage, problems = batches.progress(record)
    done = record.total - counts.get("running", 0) - counts["waiting"]
    return {
        "id": record.id,
        "team": record.team,
        "user": record.caller,
        "name": record.name or record.id,
        "status": record.status,
        "error": record.reason,
        "rows": record.total,
        "done": done,
        "tokens": usage.tokens,
        "cost": usage.cost,
        "concurrency": record.concurrency,
        "problems": [problem.model_dump() for problem in problems],
        "problem_count": done - counts.get("completed", 0),
        "started_at": record.created_at,
        "ended_at": record.ended_at,
    }


async def _save(path: Path, name: str, content: AsyncIterable[bytes], max_bytes: int) -> None:
    if path.suffix not in FILE_SUFFIXES:
        expected = ", ".join(FILE_SUFFIXES)
        raise ContractError(f"{name!r} is not one of {expected}; send a file in one of these formats")
    size = 0
    with path.open("wb") as file:
        async for piece in content:
            size += len(piece)
            if size > max_bytes:
                raise TooLargeRowsError(
                    "too_large",
                    f"{name} has more than {max_bytes} bytes; split the file, or raise POINTSMAN_BATCH_BYTES",
                )
            file.write(piece)


async def _open(path: Path, name: str, mapping: list[str]) -> RequestFile:
    try:
        return await asyncio.to_thread(RequestFile.open, path, Mapper.from_options(mapping))
    except ConfigurationError as error:  # the file of the user is at fault, not the settings of this process
        raise ContractError(str(error).replace(str(path), name)) from None


async def _lines(requests: RequestFile) -> AsyncGenerator[bytes, None]:
    """Yield each row as a line of JSON."""
    for number, row in enumerate(requests.requests(), 1):
        if isinstance(row, ContractError):
            raise RowsRefusedError("invalid_rows", f"row {number} is not a request: {row}; nothing was sent")
        yield to_json(row) + b"\n"
        if number % _YIELD_EVERY == 0:
            await asyncio.sleep(0)
