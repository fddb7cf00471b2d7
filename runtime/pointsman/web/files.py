"""Receive files for requests, and send the files of workflows. A file is never in memory as a whole."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

from pydantic import TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from pointsman.client.client import Client
from pointsman.errors import ContractError, NotFoundError
from pointsman.http.downloads import download
from pointsman.web.auth import client_of
from pointsman.web.responses import body_pieces, json_response
from pointsman_schemas.files import File
from pointsman_schemas.ids import caller_id, token
from pointsman_schemas.strict_json import describe

__all__ = ["FileTransfers", "read_files"]

_MAX_UPLOADS = 8  # number of files that are stored at a time
_FILES = TypeAdapter(tuple[File, ...])


class FileTransfers:
    """The uploads and downloads of a dashboard.

    Args:
        client: The client.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._uploads = asyncio.Semaphore(_MAX_UPLOADS)

    async def upload(self, request: Request) -> Response:
        """Store the body as a file of the future request `request_id`, and return the reference of the file.

        The file belongs to the workflow of the request, and is removed with the workflow. If the request is never sent,
        the file expires.

        Returns:
            The reference.

        Raises:
            ContractError: The name, the team or the id of the request is not valid, or the file is too large.
        """
        given = request.query_params
        client = client_of(request, self._client)
        owner = client.workflow_id(given.get("team", ""), caller_id(given.get("request_id", ""), "request id"))
        if self._uploads.locked():
            return json_response({"error": f"{_MAX_UPLOADS} files are being stored; try again in some seconds"}, 503)
        async with self._uploads, aclosing(body_pieces(request)) as pieces:
            try:
                file = await client.store_file(given.get("name", ""), pieces, owner=owner)
            except ValidationError as error:
                raise ContractError(f"the file is not valid: {describe(error)}; nothing was stored") from None
        return json_response(file)

    async def download(self, request: Request) -> Response:
        """Send a file of a workflow as a download, so that no browser shows the content in the origin of this page.

        Returns:
            The response.

        Raises:
            NotFoundError: The workflow has no such file.
        """
        name, digest = request.path_params["id"], request.path_params["digest"]
        wanted = request.query_params.get("name")
        token(name, "workflow")
        found = [each.file for each in await self._client.files(name) if each.file.sha256 == digest]
        file = next((each for each in found if wanted in (None, each.name)), None)
        if file is None:
            raise NotFoundError(f"the workflow {name} has no such file")
        return await download(file, self._client.read_file, request.headers, media_type="application/octet-stream")


def read_files(given: Any, client: Client, team: str, request_id: Any) -> Sequence[File]:
    """Read the references to the files that were uploaded for a request or a schedule.

    Args:
        given: The references that the uploads returned; None without files.
        client: The client of the user.
        team: The team that the uploads named.
        request_id: The request id that the uploads named.

    Returns:
        The references.

    Raises:
        ContractError: A reference is not valid, or belongs to another request.
    """
    if not given:
        return ()
    if request_id is None:
        raise ContractError("there are files but no request_id; send the request_id of the uploads")
    owner = client.workflow_id(team, caller_id(str(request_id), "request id"))
    try:
        files = _FILES.validate_python(given)
    except ValidationError as error:
        raise ContractError(f"the files are not valid: {describe(error)}; nothing was sent") from None
    if other := next((file for file in files if file.owner != owner), None):
        raise ContractError(
            f"the file {other.name!r} was uploaded for another request; upload the file for this request"
        )
    return files
