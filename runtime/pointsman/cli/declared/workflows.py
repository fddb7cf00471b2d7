"""The commands about workflows: submit, watch, list, show, trace, cancel; export, import, replay."""

from __future__ import annotations

from typing import Annotated

import typer

from pointsman.cli.declared.options import By, Deadline, Json, Namespace, Team, Timeout, Url, WorkflowId
from pointsman.cli.render.output import Code, command

__all__ = ["commands"]

commands = typer.Typer()


@commands.command()
@command
def submit(
    team: Annotated[str, typer.Argument(help="Who is asked.")],
    text: Annotated[
        list[str] | None, typer.Argument(metavar="[TEXT]", help="The request, in quotes; - reads standard input.")
    ] = None,
    input_json: Annotated[
        str | None, typer.Option(metavar="JSON", help="The request as a JSON object; - reads standard input.")
    ] = None,
    request_id: Annotated[
        str | None,
        typer.Option(
            metavar="ID", help="The same request under the same id is one workflow, however often it is sent."
        ),
    ] = None,
    correlation_id: Annotated[str | None, typer.Option(metavar="ID", help="Carried by every event.")] = None,
    deadline: Deadline = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait for the answer, or print the id.")] = True,
    watch: Annotated[bool, typer.Option("--watch", help="Follow it while waiting.")] = False,
    timeout: Timeout = None,
    url: Url = None,
    namespace: Namespace = None,
    json: Json = False,
) -> Code:
    """Send a request to a team and print its answer. What is missing in it is said, too."""
    from pointsman.cli.commands import submit

    return submit.submit(
        team, submit.join_request_text(team, text or ()), input_json=input_json, request_id=request_id,
        deadline=deadline,
        correlation_id=correlation_id, wait=wait, watch=watch, timeout=timeout, url=url, namespace=namespace, json=json,
    )  # fmt: skip


@commands.command()
@command
def watch(workflow: WorkflowId, url: Url = None, namespace: Namespace = None, json: Json = False) -> Code:
    """Follow a workflow from its beginning to its end."""
    from pointsman.cli.commands import workflows

    return workflows.watch(workflow, url=url, namespace=namespace, json=json)


@commands.command("list")
@command
def list_(
    team: Team = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many.")] = 20,
    url: Url = None,
    namespace: Namespace = None,
    json: Json = False,
) -> Code:
    """The workflows that were active last, newest first."""
    from pointsman.cli.commands import workflows

    return workflows.list_(team, limit=limit, url=url, namespace=namespace, json=json)


@commands.command()
@command
def show(workflow: WorkflowId, url: Url = None, namespace: Namespace = None, json: Json = False) -> Code:
    """A workflow whole: request, plans, tasks, results, outcome."""
    from pointsman.cli.commands import workflows

    return workflows.show(workflow, url=url, namespace=namespace, json=json)


@commands.command()
@command
def trace(
    workflow: WorkflowId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Draw it while it runs, until it has ended.")] = False,
    otlp: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Write its spans as OTLP/JSON, for any collector; - for standard output.",
            show_default=False,
        ),
    ] = None,
    url: Url = None,
    namespace: Namespace = None,
    json: Json = False,
) -> Code:
    """Who did what, when, how often. From the workflow's log, with what was used."""
    from pointsman.cli.commands import workflows

    return workflows.trace(workflow, follow=follow, otlp=otlp, url=url, namespace=namespace, json=json)


@commands.command()
@command
def cancel(
    workflow: WorkflowId,
    reason: Annotated[str, typer.Option(help="Kept in the log.")] = "",
    by: By = None,
    url: Url = None,
    namespace: Namespace = None,
    json: Json = False,
) -> Code:
    """Ask a running workflow to end."""
    from pointsman.cli.commands import workflows

    return workflows.cancel(workflow, reason=reason, by=by, url=url, namespace=namespace, json=json)


@commands.command()
@command
def export(
    workflow: WorkflowId,
    file: Annotated[str, typer.Argument(help="Where it goes; - for standard output.")],
    url: Url = None,
    namespace: Namespace = None,
    json: Json = False,
) -> Code:
    """Write a workflow whole to a file, with those below it. Log, events, handoffs, results, outcome, dead letters."""
    from pointsman.cli.commands import archive

    return archive.export(workflow, file, url=url, namespace=namespace, json=json)


@commands.command("import")
@command
def import_(
    file: Annotated[str, typer.Argument(help="What `pointsman export` wrote; - for standard input.")],
    url: Url = None,
    namespace: Namespace = None,
    json: Json = False,
) -> Code:
    """Put an exported workflow here, to be looked at. It keeps its id, and nothing acts on it."""
    from pointsman.cli.commands import archive

    return archive.import_(file, url=url, namespace=namespace, json=json)


@commands.command()
@command
def replay(
    file: Annotated[str, typer.Argument(help="What `pointsman export` wrote, or a bare log; - for standard input.")],
    json: Json = False,
) -> Code:
    """Decide an exported workflow again, with the present code. Says where that differs; needs no broker."""
    from pointsman.cli.commands import archive

    return archive.replay(file, json=json)
