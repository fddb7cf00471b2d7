"""The commands for schedules: create, list, show, pause, resume, run, delete."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Literal

import typer

from pointsman.cli.arguments import Deadline, Files, Json, parse_request, parse_start
from pointsman.cli.render.output import console, print_error, print_json, print_list
from pointsman.cli.render.schedules import schedule_table, schedule_view
from pointsman.cli.support.session import Execution, Session, broker_command
from pointsman.client.client import Client
from pointsman.client.known_teams import unknown_team_hint
from pointsman.errors import ConfigurationError
from pointsman_schemas.schedules import Schedule

__all__ = ["create", "delete", "list_", "pause", "resume", "run", "show"]

Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the schedule.")]
TeamOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="The team. Default: the only team with a schedule of this name.", show_default=False
    ),
]
Caller = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The owner of the schedule. Default: you.", show_default=False),
]


@broker_command
def create(
    session: Session,
    name: Name,
    team: Annotated[str, typer.Argument(metavar="TEAM", help="The name of the team.")],
    text: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TEXT]", help="The request, in quotes; - reads the request from standard input."),
    ] = None,
    cron: Annotated[
        str | None,
        typer.Option(
            metavar="FIELDS",
            help="The times: minute, hour, day of the month, month, day of the week, such as '0 9 * * 1-5'.",
        ),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="A single time, such as 2026-01-31T12:00:00Z, or a delay such as 90s or 2h."),
    ] = None,
    tz: Annotated[str, typer.Option(metavar="ZONE", help="The IANA time zone of --cron.")] = "UTC",
    overlap: Annotated[
        Literal["skip", "queue", "allow"],
        typer.Option(
            help="What to do at a fire if an earlier run has not ended: skip the fire, queue it, or allow both runs."
        ),
    ] = "skip",
    missed: Annotated[
        Literal["skip", "once"] | None,
        typer.Option(
            help="What to do if fires are too late because no supervisor ran: skip them, or start one run. Default: "
            "skip; with --at: once.",
            show_default=False,
        ),
    ] = None,
    grace: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=1,
            max=86_400,
            help="Seconds by which a fire may be late. For fires that are later, see --missed.",
        ),
    ] = 60.0,
    input_json: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="The request as a JSON object, in place of TEXT; - reads standard input."),
    ] = None,
    file: Files = None,
    deadline: Deadline = None,
    thread: Annotated[
        str | None,
        typer.Option(
            metavar="ID", help="The thread in which each run is the next turn. Default: none.", show_default=False
        ),
    ] = None,
    json: Json = False,
) -> Execution:
    """Create a schedule. Supervisors send its request at the times of a cron expression, or once.

    Returns:
        The execution of the command.

    Raises:
        ConfigurationError: The request is missing or wrong, or `--cron` and `--at` are both given or both missing.
    """
    request = parse_request(f"schedules create {name}", team, text or (), input_json)
    start = parse_start(at)
    if (cron is None) == (start is None):
        seen = "neither --cron nor --at is given" if cron is None else "both --cron and --at are given"
        raise ConfigurationError(f"{seen}; give one of them: --cron for repeated times, --at for a single time")

    async def run() -> None:
        async with session(create=True) as client:
            made = await client.schedules.create(
                name,
                team,
                request,
                cron=cron,
                at=start,
                timezone=tz,
                overlap=overlap,
                missed=missed,
                grace=grace,
                deadline=deadline,
                files=file or (),
                thread=thread,
            )
            if made is None:
                hint = await unknown_team_hint(client, team) or "no supervisor has answered."
                print_error(f"the schedule {name} is stored, and waits for a supervisor: {hint}")
                return
            if json:
                print_json(made)
            else:
                console().print(schedule_view(made, client.schedules.next_fires(made, 3)))

    return run()


@broker_command
async def list_(
    session: Session,
    team: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only schedules of this team.", show_default=False)
    ] = None,
    caller: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only schedules of this caller.", show_default=False)
    ] = None,
    json: Json = False,
) -> None:
    """List the schedules with their next times."""
    async with session() as client:
        found = await client.schedules.list(team, caller=caller)
        following = [next(iter(client.schedules.next_fires(each, 1)), None) for each in found]
    rows = list(zip(found, following, strict=True))
    print_list(found, lambda _: schedule_table(rows), "There are no schedules.", json=json)


@broker_command
async def show(
    session: Session,
    name: Name,
    team: TeamOption = None,
    caller: Caller = None,
    count: Annotated[
        int, typer.Option("--next", metavar="N", min=0, max=100, help="The number of next times to show.")
    ] = 5,
    json: Json = False,
) -> None:
    """Show a schedule with its next times and its last runs."""
    async with session() as client:
        found = await client.schedules.get(name, team, caller=caller)
        fires = client.schedules.next_fires(found, count)
    if json:
        print_json({**found.model_dump(mode="json"), "next": [fire.isoformat() for fire in fires]})
    else:
        console().print(schedule_view(found, fires))


@broker_command
async def pause(
    session: Session, name: Name, team: TeamOption = None, caller: Caller = None, json: Json = False
) -> None:
    """Pause a schedule. It starts no run until it is resumed."""
    await _change(
        session,
        lambda client: client.schedules.pause(name, team, caller=caller),
        f"The schedule {name} is paused.",
        json=json,
    )


@broker_command
async def resume(
    session: Session, name: Name, team: TeamOption = None, caller: Caller = None, json: Json = False
) -> None:
    """Resume a paused schedule."""
    await _change(
        session,
        lambda client: client.schedules.resume(name, team, caller=caller),
        f"The schedule {name} is active.",
        json=json,
    )


@broker_command
async def run(session: Session, name: Name, team: TeamOption = None, caller: Caller = None, json: Json = False) -> None:
    """Start a run now. The overlap policy also applies to this run."""
    await _change(
        session,
        lambda client: client.schedules.run(name, team, caller=caller),
        None,
        json=json,
    )


@broker_command
async def delete(
    session: Session, name: Name, team: TeamOption = None, caller: Caller = None, json: Json = False
) -> None:
    """Delete a schedule. Its started runs continue."""
    await _change(
        session,
        lambda client: client.schedules.delete(name, team, caller=caller),
        f"The schedule {name} is deleted.",
        json=json,
    )


async def _change(
    session: Session, call: Callable[[Client], Awaitable[Schedule | None]], message: str | None, *, json: bool
) -> None:
    """Carry out a command. If there is no message, print the workflow of the newest run."""
    async with session() as client:
        changed = await call(client)
    if changed is None:
        print_error("the command is stored, and waits for a supervisor of the team")
    elif json:
        print_json(changed)
    else:
        print(message or changed.runs[-1].workflow_id)
