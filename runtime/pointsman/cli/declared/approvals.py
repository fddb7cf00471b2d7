"""The commands about what waits for a person: approvals, approve, reject."""

from __future__ import annotations

from typing import Annotated

import typer

from pointsman.cli.declared.options import ApprovalId, By, Json, Namespace, OfWorkflow, Url
from pointsman.cli.render.output import Code, command

__all__ = ["commands"]

commands = typer.Typer()


@commands.command()
@command
def approvals(workflow: OfWorkflow = None, url: Url = None, namespace: Namespace = None, json: Json = False) -> Code:
    """What waits for a person, oldest first."""
    from pointsman.cli.commands import approvals

    return approvals.approvals(workflow, url=url, namespace=namespace, json=json)


@commands.command()
@command
def approve(
    approval: ApprovalId,
    input_json: Annotated[
        str | None,
        typer.Option("--input", metavar="JSON", help="Use this in place of the input, the arguments or the plan."),
    ] = None,
    by: By = None,
    url: Url = None,
    namespace: Namespace = None,
    json: Json = False,
) -> Code:
    """Allow a task, a tool call or a plan that is waited for."""
    from pointsman.cli.commands import approvals

    return approvals.answer(
        approval, approve=True, input_json=input_json, reason="", by=by, url=url, namespace=namespace, json=json
    )


@commands.command()
@command
def reject(
    approval: ApprovalId,
    reason: Annotated[str, typer.Option(help="Told to the planner or the agent, and kept in the log.")] = "",
    by: By = None,
    url: Url = None,
    namespace: Namespace = None,
    json: Json = False,
) -> Code:
    """Do not allow it, and say why."""
    from pointsman.cli.commands import approvals

    return approvals.answer(
        approval, approve=False, input_json=None, reason=reason, by=by, url=url, namespace=namespace, json=json
    )
