"""The commands that delete a workflow permanently, and that list deleted workflows."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated

import typer

from pointsman.cli.arguments import Json, WorkflowId
from pointsman.cli.render.output import Code, one_line, print_error, print_json
from pointsman.cli.support.ids import resolve_workflow_id
from pointsman.cli.support.session import Session, broker_command
from pointsman.errors import ConfigurationError

__all__ = ["audit", "forget"]


@broker_command
async def forget(
    session: Session,
    workflow: WorkflowId,
    reason: Annotated[str, typer.Option(help="The reason, for the record.")] = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    json: Json = False,
) -> Code:
    """Delete an ended workflow with all its messages.

    The child workflows are also deleted. The request, the log, events, results, steps, dead letters and large bodies
    are deleted and overwritten. A record of the workflow's id, the user, the time and the reason stays (see `pointsman
    audit`).

    Returns:
        The exit code.
    """
    async with session() as client:
        id = await resolve_workflow_id(client, workflow)
        await client.workflow(id)  # read first, so that an unknown id is an error before the question for confirmation
        if not yes and not await asyncio.to_thread(_confirm, id):
            print_error("not confirmed; nothing was changed")
            return Code.FAILED
        shown = sys.stderr.isatty()

        def show_progress(deleted: int) -> None:
            if shown:
                print(f"\r{deleted} messages deleted", end="", file=sys.stderr, flush=True)

        done = await client.operations.forget(id, reason=reason, progress=show_progress)
        if shown:
            print(file=sys.stderr)
    if json:
        print_json({"workflows": list(done.workflows), "messages": done.messages, "objects": done.objects})
    else:
        children = len(done.workflows) - 1
        others = f" and {children} child workflow{'' if children == 1 else 's'}" if children else ""
        print(f"Forgot {id}{others}: {done.messages} messages and {done.objects} large bodies were deleted.")
    return Code.OK


@broker_command
async def audit(session: Session, json: Json = False) -> None:
    """List forgotten workflows, and handled dead letters.

    A handled dead letter was discarded or replayed, or its task was done again after `pointsman resume`.
    """
    async with session() as client:
        records = await client.operations.audit()
    if json:
        print_json([{"at": each.at, "actor": each.actor, **each.content.model_dump(mode="json")} for each in records])
    else:
        for each in records:
            content = each.content
            of = content.dead_letter or content.workflow_id or ""
            because = f": {one_line(content.reason)}" if content.reason else ""
            print(f"{each.at:%Y-%m-%d %H:%M:%S}Z  {each.actor}  {content.action}  {of}{because}")
        if not records:
            print("No workflow was forgotten, and no dead letter was handled.")


def _confirm(workflow: str) -> bool:
    try:
        return typer.confirm(f"Delete all messages of {workflow} permanently?", err=True)
    except typer.Abort:  # standard input is closed, so there is no answer
        raise ConfigurationError("no confirmation on standard input; nothing was changed; use --yes") from None
