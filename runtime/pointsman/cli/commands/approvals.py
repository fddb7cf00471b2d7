"""The commands about approvals: approvals, approve, reject."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Annotated

import typer

from pointsman.cli.arguments import ApprovalId, By, Json, Namespace, OfWorkflow, Url, read_stdin
from pointsman.cli.render.outcome import approval_table
from pointsman.cli.render.output import Code, console, print_error, print_json, print_table
from pointsman.cli.support.ids import resolve_approval_id, resolve_workflow_id
from pointsman.cli.support.session import default_by, session
from pointsman.client.client import Client
from pointsman.client.operations import AnswerResult
from pointsman_schemas.strict_json import parse_json

__all__ = ["approvals", "approve", "reject"]


def approvals(workflow: OfWorkflow = None, url: Url = None, namespace: Namespace = None, json: Json = False) -> Code:
    """List the approvals that wait for a person, oldest first.

    Returns:
        The exit code.
    """

    async def run() -> Code:
        async with session(url, namespace) as client:
            found = await client.operations.approvals(await resolve_workflow_id(client, workflow) if workflow else None)
        if json:
            for approval in found:
                print_json(approval)
        elif found:
            print_table(console(), approval_table(found, datetime.now(UTC)))
        else:
            print("No approval is pending.")
        return Code.OK

    return asyncio.run(run())


def approve(
    approval: ApprovalId,
    input_json: Annotated[
        str | None,
        typer.Option(
            "--input",
            metavar="JSON",
            help="JSON that replaces the input of the task, the arguments of the tool call, or the plan; "
            "- reads it from standard input. Default: unchanged.",
            show_default=False,
        ),
    ] = None,
    by: By = None,
    url: Url = None,
    namespace: Namespace = None,
    json: Json = False,
) -> Code:
    """Approve a task, a tool call or a plan.

    Returns:
        The exit code.
    """
    text = read_stdin() if input_json == "-" else input_json
    replacement = None if text is None else parse_json(text.encode())

    async def answer(client: Client, id: str) -> AnswerResult:
        return await client.operations.approve(id, input=replacement, by=default_by(by))

    return asyncio.run(_answer(approval, answer, url, namespace, json=json))


def reject(
    approval: ApprovalId,
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="The reason, for the planner or the agent and for the log.")
    ] = "",
    by: By = None,
    url: Url = None,
    namespace: Namespace = None,
    json: Json = False,
) -> Code:
    """Reject a task, a tool call or a plan.

    Returns:
        The exit code.
    """

    async def answer(client: Client, id: str) -> AnswerResult:
        return await client.operations.reject(id, reason=reason, by=default_by(by))

    return asyncio.run(_answer(approval, answer, url, namespace, json=json))


async def _answer(
    given: str,
    answer: Callable[[Client, str], Awaitable[AnswerResult]],
    url: str | None,
    namespace: str | None,
    *,
    json: bool,
) -> Code:
    async with session(url, namespace) as client:
        approval = await resolve_approval_id(client, given)
        result = await answer(client, approval)
    if json:
        print_json({"approval": approval, "counted": result.counted, "said": result.message})
    elif result.counted is not False:
        print(f"{result.message}.")  # unformatted: the line begins with an id that may be copied
    if result.counted is False:
        print_error(result.message)
    return Code.FAILED if result.counted is False else Code.OK
