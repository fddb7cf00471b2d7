"""What can be typed: the commands with their arguments. What they do is loaded when one runs, and no sooner."""

from __future__ import annotations

from typing import Annotated

import typer
from typer.main import get_command_name
from typer.models import CommandInfo

from pointsman.cli.declared import approvals, checks, letters, processes, workflows
from pointsman.cli.declared.dashes import Command

__all__ = ["app", "keep_only"]

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
_COMMAND_GROUPS = (processes.commands, workflows.commands, approvals.commands, checks.commands)
for part in _COMMAND_GROUPS:
    app.add_typer(part)
app.add_typer(letters.commands, name="dead")
for part in (*_COMMAND_GROUPS, letters.commands):
    for command in part.registered_commands:
        command.cls = Command


def keep_only(name: str) -> None:
    """Leave out of `app` all commands but the one called `name`, if there is one: Typer builds all it has before it
    runs any, which takes longer than the one it runs."""
    kept = [[info for info in part.registered_commands if _command_name(info) == name] for part in _COMMAND_GROUPS]
    if any(kept):
        for part, infos in zip(_COMMAND_GROUPS, kept, strict=True):
            part.registered_commands = infos
        app.registered_groups = [group for group in app.registered_groups if group.typer_instance in _COMMAND_GROUPS]


def _command_name(info: CommandInfo) -> str:
    return info.name or (get_command_name(info.callback.__name__) if info.callback else "")


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
