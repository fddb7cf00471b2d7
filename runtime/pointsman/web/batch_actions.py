"""Upload, stop and resume batches, and send their results, by HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from pointsman.client.client import Client
from pointsman.client.known_teams import check_team
from pointsman.web.auth import client_of
from pointsman.web.batches import Batches
from pointsman.web.responses import body_pieces, json_response, parse_number, read_json_object
from pointsman_schemas.ids import token

__all__ = ["BatchActions"]

_MAX_NAME_CHARS = 255
_DEFAULT_CONCURRENCY = 10
_PIECE_BYTES = 131_072


class BatchActions:
    """The actions of the page of batches.

    Args:
        client: The client of the dashboard.
        batches: The batches.
    """

    def __init__(self, client: Client, batches: Batches) -> None:
        self._client = client
        self._batches = batches

    async def start(self, request: Request) -> Response:
        """Receive the body as a file of requests, and run its rows in the name of the user.

        Returns:
            The batch.
        """
        given = request.query_params
        client, team = client_of(request, self._client), token(given.get("team", ""), "team")
        await check_team(client, team)
        async with aclosing(body_pieces(request)) as pieces:
            batch = await self._batches.start(
                client,
                team,
                given.get("name", "")[:_MAX_NAME_CHARS],
                pieces,
                mapping=[each.strip() for each in given.getlist("map") if each.strip()],
                concurrency=parse_number(given.get("concurrency", str(_DEFAULT_CONCURRENCY))),
            )
        return json_response(batch.as_json())

    async def stop(self, request: Request) -> Response:
        """Send no further rows of a batch.

        Returns:
            The batch.
        """
        await read_json_object(request)
        batch = self._batches.find(request.path_params["id"])
        await self._batches.stop(batch)
        return json_response(batch.as_json())

    async def resume(self, request: Request) -> Response:
        """Go on with a batch that was stopped or failed.

        Returns:
            The batch.
        """
        await read_json_object(request)
        batch = self._batches.find(request.path_params["id"])
        self._batches.resume(batch)
        return json_response(batch.as_json())

    async def results(self, request: Request) -> Response:
        """Send the results so far as a download.

        Returns:
            A JSON object on each line.
        """
        batch = self._batches.find(request.path_params["id"])
        size = batch.results.stat().st_size  # the file grows while the batch runs
        headers = {
            "content-disposition": f'attachment; filename="{batch.id}.jsonl"',
            "content-length": str(size),
        }
        return StreamingResponse(_beginning(batch.results, size), headers=headers, media_type="application/x-ndjson")


async def _beginning(path: Path, size: int) -> AsyncGenerator[bytes, None]:
    """Yield the first `size` bytes of a file, in pieces."""
    with await asyncio.to_thread(path.open, "rb") as file:
        while size > 0 and (piece := await asyncio.to_thread(file.read, min(_PIECE_BYTES, size))):
            size -= len(piece)
            yield piece
