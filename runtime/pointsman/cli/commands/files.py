"""The command `files`, which lists the files of a workflow or saves the files in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pointsman.cli.arguments import Json, WorkflowId
from pointsman.cli.render.output import Code, one_line, print_json
from pointsman.cli.support.ids import resolve_workflow_id
from pointsman.cli.support.session import Session, broker_command

__all__ = ["files"]


@broker_command
async def files(
    session: Session,
    workflow: WorkflowId,
    save: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Save the files in this folder. No existing file is replaced.")
    ] = None,
    json: Json = False,
) -> Code:
    """List the files of a workflow, or save them in a folder.

    Returns:
        The exit code.
    """
    async with session() as client:
        found = await client.files(await resolve_workflow_id(client, workflow))
        paths = [str(path) for path in await client.save_files(found, save)] if save else []
        for number, each in enumerate(found):
            path = paths[number] if save else None
            if json:
                print_json({**each.file.model_dump(), "origin": each.origin, "path": path})
            else:
                about = f"{each.file.media_type}, {each.file.size:,} bytes, of {each.origin}"
                print(one_line(path or f"{each.file.name}  {about}", limit=1_000))
        return Code.OK
