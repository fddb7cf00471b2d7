"""List and read the outcomes and the files of workflows as resources."""

from __future__ import annotations

import base64
import re
from contextlib import aclosing

import mcp.types as types
from mcp.shared.exceptions import MCPError

from pointsman.errors import NotFoundError
from pointsman.gateway.mcp.backend import Backend
from pointsman.gateway.mcp.calls import result_files
from pointsman.gateway.mcp.tools import file_uri, workflow_uri
from pointsman_schemas.files import File
from pointsman_schemas.ids import TOKEN_PATTERN

__all__ = ["TEMPLATES", "list_resources", "read_resource"]

_PAGE = 50  # maximum number of resources on a page
# largest file in a result, in bytes, because a result is built as JSON in memory; for a larger file, use
# `pointsman files`
_MAX_FILE_BYTES = 8_000_000
_URI = re.compile(rf"pointsman://workflows/({TOKEN_PATTERN.strip('^$')})(?:/files/([1-9][0-9]{{0,5}}))?")
_TEXT_TYPES = ("text/", "application/json")

TEMPLATES = [
    types.ResourceTemplate(
        name="workflow",
        uri_template="pointsman://workflows/{workflow}",
        description="A workflow with its request, its status and its outcome.",
        mime_type="application/json",
    ),
    types.ResourceTemplate(
        name="file",
        uri_template="pointsman://workflows/{workflow}/files/{number}",
        description="A file that a workflow returned. The result of a tool has links to such files.",
    ),
]
"""The templates of the resources."""


class UnknownResourceError(MCPError):
    """The caller has no resource with this URI.

    Args:
        uri: The URI.
    """

    def __init__(self, uri: str) -> None:
        super().__init__(
            types.INVALID_PARAMS,
            f"there is no resource {uri[:200]!r} that you may read; resources/list lists your outcomes",
            data={"uri": uri[:1_000]},
        )


async def list_resources(params: types.PaginatedRequestParams | None, backend: Backend) -> types.ListResourcesResult:
    """List the caller's workflows that have ended, the newest first.

    Args:
        params: The parameters, with the cursor of a page.
        backend: The operations for the caller.

    Returns:
        A page.

    Raises:
        MCPError: The cursor is not valid.
    """
    cursor = params.cursor if params else None
    if cursor is not None and re.fullmatch("[0-9]{1,18}", cursor) is None:
        raise MCPError(types.INVALID_PARAMS, "the cursor is not valid; list again from the start")
    items, following = await backend.ended(cursor, _PAGE)
    return types.ListResourcesResult(
        resources=[
            types.Resource(
                name=item.id,
                uri=workflow_uri(item.id),
                title=f"{item.team}: {item.status} on {item.ended_at:%Y-%m-%d %H:%M} UTC",
                description=f"The outcome of a workflow of the team {item.team}.",
                mime_type="application/json",
            )
            for item in items
        ],
        next_cursor=following,
    )


async def read_resource(params: types.ReadResourceRequestParams, backend: Backend) -> types.ReadResourceResult:
    """Read a workflow or a file.

    Args:
        params: The parameters, with the URI.
        backend: The operations for the caller.

    Returns:
        The content.

    Raises:
        UnknownResourceError: The caller has no resource with this URI.
        MCPError: The file is too large.
    """
    found = _URI.fullmatch(params.uri)
    if found is None:
        raise UnknownResourceError(params.uri)
    try:
        view = await backend.view(found[1])
        if found[2] is None:
            text = view.model_dump_json(exclude_none=True)
            content: types.TextResourceContents | types.BlobResourceContents = types.TextResourceContents(
                uri=params.uri, mime_type="application/json", text=text
            )
        else:
            files = await result_files(backend, view.id)
            number = int(found[2])
            if number > len(files):
                raise UnknownResourceError(params.uri)
            content = await _file_content(files[number - 1], file_uri(view.id, number), backend)
    except NotFoundError:
        raise UnknownResourceError(params.uri) from None
    return types.ReadResourceResult(contents=[content])


async def _file_content(
    file: File, uri: str, backend: Backend
) -> types.TextResourceContents | types.BlobResourceContents:
    if file.size > _MAX_FILE_BYTES:
        raise MCPError(
            types.INVALID_PARAMS,
            f"{file.name} has {file.size} bytes, but a resource may have at most {_MAX_FILE_BYTES}; save the file "
            f"with `pointsman files`",
        )
    async with aclosing(backend.client.read_file(file)) as reading:
        data = b"".join([piece async for piece in reading])
    if file.media_type.startswith(_TEXT_TYPES):
        try:
            return types.TextResourceContents(uri=uri, mime_type=file.media_type, text=data.decode())
        except UnicodeDecodeError:
            pass
    return types.BlobResourceContents(uri=uri, mime_type=file.media_type, blob=base64.b64encode(data).decode())
