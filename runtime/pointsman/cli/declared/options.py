"""Arguments and options that several commands take, each with one name and one meaning."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = [
    "All",
    "ApprovalId",
    "AtMost",
    "By",
    "Cause",
    "Deadline",
    "Json",
    "Letters",
    "Namespace",
    "OfWorkflow",
    "Origin",
    "Since",
    "Team",
    "Timeout",
    "Until",
    "Url",
    "WithParent",
    "WorkflowId",
    "Yes",
]


def _positive(value: float | None) -> float | None:
    if value is not None and not value > 0:
        raise typer.BadParameter(f"{value:g} is not more than 0 seconds")
    return value


Url = Annotated[str | None, typer.Option(help="NATS servers, comma-separated.", show_default=False, metavar="URL")]
Namespace = Annotated[
    str | None, typer.Option(help="The tenant's prefix on every subject.", show_default=False, metavar="NAME")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one document a line.")]
WithParent = Annotated[bool, typer.Option("--with-parent", hidden=True)]  # end when whoever started it does

Deadline = Annotated[
    float | None, typer.Option(metavar="SECONDS", help="When an answer must be there.", callback=_positive)
]
Timeout = Annotated[float | None, typer.Option(metavar="SECONDS", help="Wait no longer.", callback=_positive)]
WorkflowId = Annotated[
    str,
    typer.Argument(metavar="WORKFLOW", help="The workflow's id, wf_..., or as much of its beginning as is no other's"),
]
OfWorkflow = Annotated[str | None, typer.Option(metavar="ID", help="Of this workflow only.", show_default=False)]
Team = Annotated[str | None, typer.Option(help="Of this team only.", show_default=False)]
By = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Who says so, kept in the log. Default: who is logged in.", show_default=False),
]
ApprovalId = Annotated[str, typer.Argument(metavar="ID", help="As `pointsman approvals` shows it.")]

Letters = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Dead letters.", show_default=False)]
Origin = Annotated[str | None, typer.Option(help="From this agent or team only.", show_default=False)]
Cause = Annotated[str | None, typer.Option(metavar="KIND", help="With this kind of cause only.", show_default=False)]
Since = Annotated[str | None, typer.Option(metavar="TIME", help="Written since: an age as 2h, or an instant.")]
Until = Annotated[str | None, typer.Option(metavar="TIME", help="Written before: an age as 2h, or an instant.")]
AtMost = Annotated[int | None, typer.Option(min=1, help="At most so many, the oldest.", show_default=False)]
All = Annotated[bool, typer.Option("--all", help="All there are.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
