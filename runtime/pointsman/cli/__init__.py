"""The command line. Commands are declared here and live beside it: none of them is loaded until it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from pointsman.cli.output import Code, command

__all__ = ["app", "main"]

# Typer's own help in rich costs 0.7 s of CPU here, its plain one none; errors and tracebacks are ours.
app = typer.Typer(
    name="pointsman",
    help="Teams of LLM agents over NATS JetStream.",
    epilog="Exit codes: 0 done, 1 not completed or something found, 2 usage or configuration, 3 not found, "
    "4 broker unreachable, 130 interrupted.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
dead = typer.Typer(help="Look at what nobody could process; replay or discard it.", no_args_is_help=True,
                   rich_markup_mode=None)  # fmt: skip
app.add_typer(dead, name="dead")

Url = Annotated[
    Optional[str], typer.Option(help="NATS servers, comma-separated.", show_default=False, metavar="URL")  # noqa: UP045
]
Namespace = Annotated[
    Optional[str], typer.Option(help="The tenant's prefix on every subject.", show_default=False, metavar="NAME")  # noqa: UP045
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one document a line.")]
WorkflowId = Annotated[str, typer.Argument(metavar="WORKFLOW", help="The workflow's id, wf_...")]
Team = Annotated[Optional[str], typer.Option(help="Of this team only.", show_default=False)]  # noqa: UP045


def main() -> None:
    """The console script."""
    app()


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(version("pointsman"))
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="Say which it is.")
    ] = False,
) -> None:
    """Teams of LLM agents over NATS JetStream."""


@app.command()
@command
def demo(
    text: Annotated[Optional[str], typer.Argument(help="What to ask the team. Default: three wishes at once.")] = None,  # noqa: UP045
    dir: Annotated[Optional[Path], typer.Option(help="Keep the broker's data and the logs here.")] = None,  # noqa: UP045
    json: Json = False,
) -> Code:
    """See it work: a broker, a supervisor and five agents, each a process of its own, answer one request."""
    from pointsman.cli import serve

    return serve.demo(text, directory=dir, json=json)


@app.command()
@command
def up(
    target: Annotated[Optional[str], typer.Argument(help="The team and its agents: module or file.py.")] = None,  # noqa: UP045
    port: Annotated[Optional[int], typer.Option(help="The broker's port. Default: 4222 if it is free.")] = None,  # noqa: UP045
    dir: Annotated[Optional[Path], typer.Option(help="Keep the broker's data and the logs here.")] = None,  # noqa: UP045
    page: Annotated[bool, typer.Option("--dashboard/--no-dashboard", help="Serve the dashboard as well.")] = True,
    namespace: Namespace = None,
    json: Json = False,
) -> Code:
    """For development: a broker, the supervisor and the agents of a team, until Ctrl-C. What crashes is restarted."""
    from pointsman.cli import serve

    return serve.up(target, port=port, directory=dir, page=page, namespace=namespace, json=json)


@app.command()
@command
def dashboard(
    host: Annotated[
        Optional[str], typer.Option(help="The address to answer on. Default: 127.0.0.1.", show_default=False)  # noqa: UP045
    ] = None,
    port: Annotated[
        Optional[int], typer.Option(min=0, max=65_535, help="Default: 8400; 0: a free one.", show_default=False)  # noqa: UP045
    ] = None,
    token: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="What a visitor must know. Needed where others can reach it.", show_default=False),
    ] = None,
    allow_host: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(metavar="NAME", help="A name under which it is opened; addresses and localhost need none."),
    ] = None,
    url: Url = None,
    namespace: Namespace = None,
    with_parent: Annotated[bool, typer.Option("--with-parent", hidden=True)] = False,
) -> Code:
    """Everything in a browser: workflows as they run, agents, dead letters. Until SIGTERM or Ctrl-C."""
    from pointsman.cli import serve

    return serve.dashboard(
        host=host, port=port, token=token, hosts=allow_host or [], url=url, namespace=namespace,
        with_parent=with_parent,
    )  # fmt: skip


@app.command()
@command
def supervisor(
    target: Annotated[str, typer.Argument(help="The team: module:name or file.py[:name].")],
    url: Url = None,
    namespace: Namespace = None,
    with_parent: Annotated[bool, typer.Option("--with-parent", hidden=True)] = False,
) -> Code:
    """Run the supervisor of a team until SIGTERM or Ctrl-C. Start as many as you like."""
    from pointsman.cli import serve

    return serve.supervisor(target, url=url, namespace=namespace, with_parent=with_parent)


@app.command()
@command
def worker(
    targets: Annotated[list[str], typer.Argument(help="Agents: module:name or file.py[:name].")],
    url: Url = None,
    namespace: Namespace = None,
    with_parent: Annotated[bool, typer.Option("--with-parent", hidden=True)] = False,
) -> Code:
    """Run agents in this process until SIGTERM or Ctrl-C. Start as many as you like."""
    from pointsman.cli import serve

    return serve.worker(targets, url=url, namespace=namespace, with_parent=with_parent)


@app.command()
@command
def submit(
    team: Annotated[str, typer.Argument(help="Who is asked.")],
    text: Annotated[Optional[str], typer.Argument(help="The request; - reads standard input.")] = None,  # noqa: UP045
    input_json: Annotated[
        Optional[str], typer.Option(metavar="JSON", help="The request as a JSON object; - reads standard input.")  # noqa: UP045
    ] = None,
    request_id: Annotated[
        Optional[str], typer.Option(metavar="ID", help="The same id is the same workflow, however often it is sent.")  # noqa: UP045
    ] = None,
    correlation_id: Annotated[Optional[str], typer.Option(metavar="ID", help="Carried by every event.")] = None,  # noqa: UP045
    deadline: Annotated[Optional[float], typer.Option(metavar="SECONDS", help="When an answer must be there.")] = None,  # noqa: UP045
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait for the answer, or print the id.")] = True,
    watch: Annotated[bool, typer.Option("--watch", help="Follow it while waiting.")] = False,
    timeout: Annotated[Optional[float], typer.Option(metavar="SECONDS", help="Wait no longer.")] = None,  # noqa: UP045
    url: Url = None,
    namespace: Namespace = None,
    json: Json = False,
) -> Code:
    """Send a request to a team and print its answer, and what is missing in it."""
    from pointsman.cli import workflows

    return workflows.submit(
        team, text, input_json=input_json, request_id=request_id, correlation_id=correlation_id, deadline=deadline,
        wait=wait, watch=watch, timeout=timeout, url=url, namespace=namespace, json=json,
    )  # fmt: skip


@app.command()
@command
def watch(workflow: WorkflowId, url: Url = None, namespace: Namespace = None, json: Json = False) -> Code:
    """Follow a workflow from its beginning to its end."""
    from pointsman.cli import workflows

    return workflows.watch(workflow, url=url, namespace=namespace, json=json)


@app.command("list")
@command
def list_(
    team: Team = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many.")] = 20,
    url: Url = None,
    namespace: Namespace = None,
    json: Json = False,
) -> Code:
    """The workflows that were active last, newest first."""
    from pointsman.cli import workflows

    return workflows.list_(team, limit=limit, url=url, namespace=namespace, json=json)


@app.command()
@command
def show(workflow: WorkflowId, url: Url = None, namespace: Namespace = None, json: Json = False) -> Code:
    """A workflow whole: request, plans, tasks, results, outcome."""
    from pointsman.cli import workflows

    return workflows.show(workflow, url=url, namespace=namespace, json=json)


@app.command()
@command
def trace(
    workflow: WorkflowId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Draw it while it runs, until it has ended.")] = False,
    otlp: Annotated[
        Optional[str],  # noqa: UP045
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
    """The workflow's trace, from its log: who did what, when, how often, and what it used."""
    from pointsman.cli import workflows

    return workflows.trace(workflow, follow=follow, otlp=otlp, url=url, namespace=namespace, json=json)


@app.command()
@command
def export(
    workflow: WorkflowId,
    file: Annotated[str, typer.Argument(help="Where it goes; - for standard output.")],
    url: Url = None,
    namespace: Namespace = None,
    json: Json = False,
) -> Code:
    """Write a workflow whole to a file: log, events, handoffs, results, outcome, dead letters."""
    from pointsman.cli import archives

    return archives.export(workflow, file, url=url, namespace=namespace, json=json)


@app.command("import")
@command
def import_(
    file: Annotated[str, typer.Argument(help="What `pointsman export` wrote; - for standard input.")],
    url: Url = None,
    namespace: Namespace = None,
    json: Json = False,
) -> Code:
    """Put an exported workflow into this namespace, under its id, to be looked at. Nothing acts on it."""
    from pointsman.cli import archives

    return archives.import_(file, url=url, namespace=namespace, json=json)


@app.command()
@command
def replay(
    file: Annotated[str, typer.Argument(help="What `pointsman export` wrote, or a bare log; - for standard input.")],
    json: Json = False,
) -> Code:
    """Decide an exported workflow again, with the present code, and say where it differs. Needs no broker."""
    from pointsman.cli import archives

    return archives.replay(file, json=json)


@app.command()
@command
def cancel(
    workflow: WorkflowId,
    reason: Annotated[str, typer.Option(help="Kept in the log.")] = "",
    url: Url = None,
    namespace: Namespace = None,
    json: Json = False,
) -> Code:
    """Ask a running workflow to end."""
    from pointsman.cli import workflows

    return workflows.cancel(workflow, reason=reason, url=url, namespace=namespace, json=json)


@app.command()
@command
def approvals(workflow: OfWorkflow = None, url: Url = None, namespace: Namespace = None, json: Json = False) -> Code:
    """What waits for a person, oldest first."""
    from pointsman.cli import workflows

    return workflows.approvals(workflow, url=url, namespace=namespace, json=json)


Asked = Annotated[str, typer.Argument(metavar="ID", help="As `pointsman approvals` shows it.")]


@app.command()
@command
def approve(
    approval: Asked,
    input_json: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--input", metavar="JSON", help="Use this in place of the input, the arguments or the plan."),
    ] = None,
    url: Url = None,
    namespace: Namespace = None,
    json: Json = False,
) -> Code:
    """Allow a task, a tool call or a plan that a workflow waits for."""
    from pointsman.cli import workflows

    return workflows.answer(
        approval, approve=True, input_json=input_json, reason="", url=url, namespace=namespace, json=json
    )


@app.command()
@command
def reject(
    approval: Asked,
    reason: Annotated[str, typer.Option(help="Told to the planner or the agent, and kept in the log.")] = "",
    url: Url = None,
    namespace: Namespace = None,
    json: Json = False,
) -> Code:
    """Do not allow it."""
    from pointsman.cli import workflows

    return workflows.answer(
        approval, approve=False, input_json=None, reason=reason, url=url, namespace=namespace, json=json
    )


@app.command()
@command
def agents(url: Url = None, namespace: Namespace = None, json: Json = False) -> Code:
    """The agents alive now, and what waits for each."""
    from pointsman.cli import health

    return health.agents(url=url, namespace=namespace, json=json)


@app.command()
@command
def doctor(
    target: Annotated[Optional[str], typer.Argument(help="Also look for this team: name or module:name.")] = None,  # noqa: UP045
    url: Url = None,
    namespace: Namespace = None,
    json: Json = False,
) -> Code:
    """Check everything a workflow needs, and say what to do about what is missing."""
    from pointsman.cli import health

    return health.doctor(target, url=url, namespace=namespace, json=json)


@app.command("eval")
@command
def eval_(
    file: Annotated[Path, typer.Argument(help="The suite: YAML, JSON or Python.")],
    embedded: Annotated[bool, typer.Option("--embedded", help="Start a broker and the team for it.")] = False,
    target: Annotated[Optional[str], typer.Option(help="What --embedded starts: module or file.py.")] = None,  # noqa: UP045
    parallel: Annotated[int, typer.Option(min=1, help="So many cases at a time.")] = 8,
    threshold: Annotated[Optional[float], typer.Option(min=0, max=1, help="The share that must be right.")] = None,  # noqa: UP045
    junit: Annotated[Optional[Path], typer.Option(metavar="FILE", help="Also write JUnit's XML.")] = None,  # noqa: UP045
    url: Url = None,
    namespace: Namespace = None,
    json: Json = False,
) -> Code:
    """Hold a team or an agent against labelled requests; not 0 when too few are right."""
    from pointsman.cli import evaluating

    return evaluating.run(
        file, embedded=embedded, target=target, parallel=parallel, threshold=threshold, junit=junit, url=url,
        namespace=namespace, json=json,
    )  # fmt: skip


@app.command()
@command
def mcp(
    team: Annotated[str, typer.Argument(help="The team to offer.")],
    timeout: Annotated[float, typer.Option(metavar="SECONDS", min=1, help="When an answer must be there.")] = 120.0,
    url: Url = None,
    namespace: Namespace = None,
) -> Code:
    """Offer a team as a tool of an MCP server on standard input and output, for other assistants."""
    from pointsman.cli import offering

    return offering.run(team, timeout=timeout, url=url, namespace=namespace)


Origin = Annotated[Optional[str], typer.Option(help="From this agent or team only.", show_default=False)]  # noqa: UP045
OfWorkflow = Annotated[Optional[str], typer.Option(metavar="ID", help="Of this workflow only.", show_default=False)]  # noqa: UP045
Letters = Annotated[Optional[list[str]], typer.Argument(metavar="[ID]...", help="Dead letters.", show_default=False)]  # noqa: UP045


Cause = Annotated[Optional[str], typer.Option(metavar="KIND", help="With this kind of cause only.", show_default=False)]  # noqa: UP045
Since = Annotated[Optional[str], typer.Option(metavar="TIME", help="Written since: an age as 2h, or an instant.")]  # noqa: UP045
Until = Annotated[Optional[str], typer.Option(metavar="TIME", help="Written before: an age as 2h, or an instant.")]  # noqa: UP045
AtMost = Annotated[Optional[int], typer.Option(min=1, help="At most so many, the oldest.", show_default=False)]  # noqa: UP045
All = Annotated[bool, typer.Option("--all", help="All there are.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@dead.command("list")
@command
def dead_list(
    origin: Origin = None,
    workflow: OfWorkflow = None,
    cause: Cause = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 100,
    url: Url = None,
    namespace: Namespace = None,
    json: Json = False,
) -> Code:
    """The dead letters, oldest first."""
    from pointsman.cli import letters

    choice = letters.Choice((), True, origin, workflow, cause, since, until, limit)
    return letters.list_(choice, url=url, namespace=namespace, json=json)


@dead.command("show")
@command
def dead_show(
    letter: Annotated[str, typer.Argument(metavar="ID")],
    url: Url = None,
    namespace: Namespace = None,
    json: Json = False,
) -> Code:
    """One dead letter: its cause, and the event as it was."""
    from pointsman.cli import letters

    return letters.show(letter, url=url, namespace=namespace, json=json)


@dead.command("replay")
@command
def dead_replay(
    ids: Letters = None,
    all: All = False,
    origin: Origin = None,
    workflow: OfWorkflow = None,
    cause: Cause = None,
    since: Since = None,
    until: Until = None,
    limit: AtMost = None,
    as_new: Annotated[bool, typer.Option("--as-new", help="Send the workflow's request again, as a new one.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Do not remove the letter afterwards.")] = False,
    yes: Yes = False,
    url: Url = None,
    namespace: Namespace = None,
    json: Json = False,
) -> Code:
    """Give the events another chance and remove their letters: the ones named, or all that fit. Replaying one twice is
    replaying it once."""
    from pointsman.cli import letters

    choice = letters.Choice(ids or (), all, origin, workflow, cause, since, until, limit)
    return letters.replay(choice, as_new=as_new, keep=keep, yes=yes, url=url, namespace=namespace, json=json)


@dead.command("discard")
@command
def dead_discard(
    ids: Letters = None,
    all: All = False,
    origin: Origin = None,
    workflow: OfWorkflow = None,
    cause: Cause = None,
    since: Since = None,
    until: Until = None,
    limit: AtMost = None,
    yes: Yes = False,
    url: Url = None,
    namespace: Namespace = None,
    json: Json = False,
) -> Code:
    """Remove dead letters for good: the ones named, or all that fit."""
    from pointsman.cli import letters

    choice = letters.Choice(ids or (), all, origin, workflow, cause, since, until, limit)
    return letters.discard(choice, yes=yes, url=url, namespace=namespace, json=json)
