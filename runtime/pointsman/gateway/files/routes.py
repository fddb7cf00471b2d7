"""Upload files, and download uploads and the files of workflows."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, Field

from pointsman.bus.file_store import StoredFile
from pointsman.client.files import WorkflowFile
from pointsman.errors import NotFoundError
from pointsman.gateway.callers import Caller
from pointsman.gateway.context import CallerArg, Context, ContextArg
from pointsman.gateway.files.uploads import expires_at, find_upload, receive_file
from pointsman.gateway.invalid_requests import DIGEST_PATTERN
from pointsman.gateway.models import FILE_ID_PATTERN
from pointsman.gateway.problems import problems
from pointsman.gateway.workflows import WorkflowPath
from pointsman.http.downloads import download

__all__ = ["router"]

router = APIRouter(prefix="/v1", tags=["files"])

_BINARY = {"type": "string", "format": "binary"}
_UPLOAD = {
    "requestBody": {
        "required": False,
        "content": {
            "application/octet-stream": {"schema": _BINARY},
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "file": {
                            **_BINARY,
                            "description": "The file. The headers of this part have the name and the media type.",
                        },
                        "purpose": {
                            "type": "string",
                            "description": "Ignored; clients of OpenAI's API send this field.",
                        },
                    },
                    "required": ["file"],
                }
            },
        },
    }
}
_CONTENT: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The file.",
        "headers": {
            "ETag": {"description": "The SHA-256 of the content.", "schema": {"type": "string"}},
            "Accept-Ranges": {"description": "Always `bytes`.", "schema": {"type": "string"}},
        },
        "content": {"*/*": {"schema": _BINARY}},
    },
    206: {"description": "The requested range.", "content": {"*/*": {"schema": _BINARY}}},
    304: {"description": "The client has the file, because `If-None-Match` has the digest of the file."},
    **problems(404, 410, 416),
}
FilePath = Annotated[str, Path(pattern=FILE_ID_PATTERN, description="The id of the file.")]
DigestPath = Annotated[str, Path(pattern=DIGEST_PATTERN, description="The SHA-256 of the file.")]


class FileObject(BaseModel):
    """An upload. If OpenAI's API has a field, too, the field has the same name here."""

    id: str = Field(description="The id. Requests name the file by this id.")
    object: Literal["file"] = Field(default="file", description="Always `file`.")
    filename: str = Field(description="The name.")
    media_type: str = Field(description="The media type.")
    bytes: int = Field(description="The size in bytes.")
    sha256: str = Field(description="The SHA-256 of the content.")
    created_at: int = Field(description="Time of the upload, in seconds since 1970.")
    expires_at: int = Field(description="Time after which no new request may use the file, in seconds since 1970.")
    purpose: str = Field(default="user_data", description="Always `user_data`.")
    status: Literal["processed"] = Field(default="processed", description="Always `processed`.")

    @classmethod
    def of(cls, stored: StoredFile) -> FileObject:
        """Return the view of an upload.

        Args:
            stored: The upload.
        """
        file = stored.file
        return cls(
            id=file.object_name,
            filename=file.name,
            media_type=file.media_type,
            bytes=file.size,
            sha256=file.sha256,
            created_at=int(stored.at.timestamp()),
            expires_at=int(expires_at(stored).timestamp()),
        )


class WorkflowFileView(BaseModel):
    """A file of a workflow."""

    name: str = Field(description="The name.")
    media_type: str = Field(description="The media type.")
    size: int = Field(description="The size in bytes.")
    sha256: str = Field(description="The SHA-256 of the content.")
    origin: str = Field(description="`request` for a file of the request; otherwise the task that returned the file.")
    url: str = Field(description="The path of the content.")


class WorkflowFiles(BaseModel):
    """The files of a workflow."""

    files: list[WorkflowFileView] = Field(description="The files, in the order of the log.")


@router.post(
    "/files",
    status_code=201,
    summary="Upload a file",
    description="Store a file for requests that are sent within a day. The body is the file, with its media type as "
    "`Content-Type`. Or the body is a form with the file as the part `file`. The body is stored piece by piece. A "
    "repeated upload of the same file has the same id.",
    openapi_extra=_UPLOAD,
    responses=problems(408),
)
async def upload_file(
    request: Request,
    context: ContextArg,
    caller: CallerArg,
    name: Annotated[
        str, Query(min_length=1, max_length=255, description="The name of the file, if the body is the file.")
    ] = "file",
) -> FileObject:
    """Store a file."""
    file = await receive_file(
        context.files,
        caller,
        request.stream(),
        content_type=request.headers.get("content-type", ""),
        name=name,
        max_bytes=context.settings.max_file_bytes,
    )
    return FileObject.of(await find_upload(context.files, caller, file.object_name))


@router.get("/files/{file_id}", summary="Read the description of an upload", responses=problems(404))
async def get_file(file_id: FilePath, context: ContextArg, caller: CallerArg) -> FileObject:
    """Read the description of an upload of the caller."""
    return FileObject.of(await find_upload(context.files, caller, file_id))


@router.get(
    "/files/{file_id}/content",
    summary="Download an upload",
    description="Download an upload of the caller. `Range` selects a part. With `If-None-Match`, only a changed file "
    "is sent.",
    response_class=Response,
    responses=_CONTENT,
)
async def get_content(file_id: FilePath, context: ContextArg, caller: CallerArg, request: Request) -> Response:
    """Download an upload."""
    found = await find_upload(context.files, caller, file_id)
    return await download(found.file, context.files.read, request.headers)


@router.get("/workflows/{workflow_id}/files", summary="List the files of a workflow", responses=problems(404))
async def list_workflow_files(workflow_id: WorkflowPath, context: ContextArg, caller: CallerArg) -> WorkflowFiles:
    """List the files of the request of a workflow, and the files that tasks have returned."""
    found = await _files_of(context, caller, workflow_id)
    return WorkflowFiles(
        files=[
            WorkflowFileView(
                **each.file.model_dump(exclude={"owner"}),
                origin=each.origin,
                url=f"/v1/workflows/{workflow_id}/files/{each.file.sha256}",
            )
            for each in found
        ]
    )


@router.get(
    "/workflows/{workflow_id}/files/{digest}",
    summary="Download a file of a workflow",
    description="Download a file of a workflow. `Range` selects a part. With `If-None-Match`, only a changed file is "
    "sent.",
    response_class=Response,
    responses=_CONTENT,
)
async def get_workflow_file(
    workflow_id: WorkflowPath, digest: DigestPath, context: ContextArg, caller: CallerArg, request: Request
) -> Response:
    """Download a file of a workflow."""
    for each in await _files_of(context, caller, workflow_id):
        if each.file.sha256 == digest:
            return await download(each.file, context.files.read, request.headers)
    raise NotFoundError(
        f"the workflow {workflow_id} has no such file; GET /v1/workflows/{workflow_id}/files lists the files"
    )


async def _files_of(context: Context, caller: Caller, workflow: str) -> list[WorkflowFile]:
    view = await context.view(caller, workflow)
    return [] if view.status in ("queued", "cancelling") else list(await context.client.files(workflow))
