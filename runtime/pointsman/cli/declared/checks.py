"""The commands that look whether all is well: agents, doctor, eval."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pointsman.cli.declared.options import Json, Namespace, Timeout, Url
from pointsman.cli.render.output import Code, command

__all__ = ["commands"]

commands = typer.Typer()


@commands.command()
@command
def agents(
    wait: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="First wait until this agent is there, a minute or --timeout.", show_default=False
        ),
    ] = None,
    timeout: Timeout = None,
    url: Url = None,
    namespace: Namespace = None,
    json: Json = False,
) -> Code:
    """The agents and teams alive now, and what waits for each."""
    from pointsman.cli.commands import agents

    return agents.agents(wait or [], timeout, url=url, namespace=namespace, json=json)


@commands.command()
@command
def doctor(
    target: Annotated[str | None, typer.Argument(help="Also look for this team: name or module:name.")] = None,
    url: Url = None,
    namespace: Namespace = None,
    json: Json = False,
) -> Code:
    """Check all that a workflow needs. Says what to do about what is missing."""
    from pointsman.cli.commands import doctor

    return doctor.doctor(target, url=url, namespace=namespace, json=json)


@commands.command("eval")
@command
def eval_(
    file: Annotated[Path, typer.Argument(help="The suite: YAML, JSON or Python.")],
    embedded: Annotated[bool, typer.Option("--embedded", help="Start a broker and the team for it.")] = False,
    target: Annotated[str | None, typer.Option(help="What --embedded starts: module or file.py.")] = None,
    parallel: Annotated[int, typer.Option(min=1, help="So many cases at a time.")] = 8,
    threshold: Annotated[float | None, typer.Option(min=0, max=1, help="The share that must be right.")] = None,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write JUnit's XML.")] = None,
    url: Url = None,
    namespace: Namespace = None,
    json: Json = False,
) -> Code:
    """Hold a team or an agent against labelled requests. Not 0 when too few are right."""
    from pointsman.cli.commands import evaluate

    return evaluate.run(
        file, embedded=embedded, target=target, parallel=parallel, threshold=threshold, junit=junit, url=url,
        namespace=namespace, json=json,
    )  # fmt: skip
