"""The commands about dead letters: dead list, show, replay, discard."""

from __future__ import annotations

from typing import Annotated

import typer

from pointsman.cli.declared.options import (
    All,
    AtMost,
    Cause,
    Json,
    Letters,
    Namespace,
    OfWorkflow,
    Origin,
    Since,
    Until,
    Url,
    Yes,
)
from pointsman.cli.render.output import Code, command

__all__ = ["commands"]

commands = typer.Typer(
    help="What nobody could process: look, replay, discard.", no_args_is_help=True, rich_markup_mode=None
)


@commands.command("list")
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
    from pointsman.cli.commands import dead_letters

    choice = dead_letters.LetterFilter((), True, origin, workflow, cause, since, until, limit)
    return dead_letters.list_(choice, url=url, namespace=namespace, json=json)


@commands.command("show")
@command
def dead_show(
    letter: Annotated[str, typer.Argument(metavar="ID")],
    url: Url = None,
    namespace: Namespace = None,
    json: Json = False,
) -> Code:
    """One dead letter: its cause, and the event as it was."""
    from pointsman.cli.commands import dead_letters

    return dead_letters.show(letter, url=url, namespace=namespace, json=json)


@commands.command("replay")
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
    as_new: Annotated[
        bool, typer.Option("--as-new", help="Send the workflow's request again, as a new one, if its agent is alive.")
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Do not remove the letter afterwards.")] = False,
    yes: Yes = False,
    url: Url = None,
    namespace: Namespace = None,
    json: Json = False,
) -> Code:
    """Give the events another chance. The ones named, or all that fit, whose letters then go. Replaying one twice is
    replaying it once."""
    from pointsman.cli.commands import dead_letters

    choice = dead_letters.LetterFilter(ids or (), all, origin, workflow, cause, since, until, limit)
    return dead_letters.replay(choice, as_new=as_new, keep=keep, yes=yes, url=url, namespace=namespace, json=json)


@commands.command("discard")
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
    """Remove dead letters for good. The ones named, or all that fit."""
    from pointsman.cli.commands import dead_letters

    choice = dead_letters.LetterFilter(ids or (), all, origin, workflow, cause, since, until, limit)
    return dead_letters.discard(choice, yes=yes, url=url, namespace=namespace, json=json)
