"""What can be typed: the commands with their arguments. What they do is loaded when one runs, and no sooner."""

from __future__ import annotations

from typing import Annotated

import typer

from pointsman.cli.declared import approvals, checks, letters, processes, workflows

__all__ = ["app"]

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
for part in (processes, workflows, approvals, checks):
    app.add_typer(part.commands)
app.add_typer(letters.commands, name="dead")


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
