"""What can be typed: the commands with their arguments. What they do is loaded when one runs, and no sooner."""

from __future__ import annotations

import typer

from pointsman.cli.declared import approvals, checks, letters, processes, workflows

__all__ = ["commands"]

commands = typer.Typer()
for part in (processes, workflows, approvals, checks):
    commands.add_typer(part.commands)
commands.add_typer(letters.commands, name="dead")
