"""The command submit, which sends a request and waits for the answer.

If no supervisor admits the request, the command prints the possible cause.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Annotated
from uuid import uuid4

import typer
from pydantic import JsonValue

from pointsman.cli.arguments import Deadline, Files, Json, Timeout, parse_request, parse_start
from pointsman.cli.render.follow import follow, print_outcome, print_streamed_text
from pointsman.cli.render.output import Code, console, outcome_code, print_error, print_json
from pointsman.cli.render.wait_notices import NOTICE_AFTER_S, notices, report_outages, report_waits
from pointsman.cli.support.session import Execution, Session, broker_command
from pointsman.cli.support.teams import is_admitted
from pointsman.client.client import QUEUED_STATUS, Client, Workflow
from pointsman.client.known_teams import unknown_team_hint
from pointsman.errors import BusUnavailableError, ConfigurationError
from pointsman_schemas.events import Outcome

__all__ = ["submit"]


@broker_command
def submit(
    session: Session,
    team: Annotated[str, typer.Argument(help="The name of the team.")],
    text: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TEXT]", help="The request, in quotes; - reads the request from standard input."),
    ] = None,
    input_json: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="The request as a JSON object, in place of TEXT; - reads standard input."),
    ] = None,
    request_id: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="Id of the request. If you send the request again with this id, no second workflow starts. "
            "Default: a new id.",
        ),
    ] = None,
    correlation_id: Annotated[
        str | None,
        typer.Option(
            metavar="ID", help="Id that all events of the workflow contain, for searches. Default: the request id."
        ),
    ] = None,
    file: Files = None,
    deadline: Deadline = None,
    thread: Annotated[
        str | None,
        typer.Option(
            metavar="ID", help="The thread in which the request is the next turn. Default: none.", show_default=False
        ),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Send the request at this time, such as 2026-01-31T12:00:00Z, or after a delay such as 90s or 2h. "
            "The command does not wait. Default: now.",
            show_default=False,
        ),
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait for the answer, or print the id of the workflow and exit.")
    ] = True,
    watch: Annotated[bool, typer.Option("--watch", help="Print the events of the workflow while waiting.")] = False,
    timeout: Timeout = None,
    json: Json = False,
) -> Execution:
    """Send a request to a team and print the answer.

    The gaps of a partial answer are printed on standard error.

    Returns:
        The execution of the command.

    Raises:
        ConfigurationError: The request or the request id is missing or wrong.
    """
    request = parse_request("submit", team, text or (), input_json)
    if request_id is not None and not request_id.strip():
        raise ConfigurationError("--request-id is empty; give an id, or leave out the option for a new id")
    start = parse_start(at)
    if start is not None and (request_id or correlation_id or watch):
        raise ConfigurationError("--at takes no --request-id, --correlation-id or --watch; leave them out")

    async def run() -> Code:
        async with session(create=True) as client:
            if start is not None:
                return await _submit_later(client, team, request, start, file or (), deadline, thread, json=json)
            workflow = await client.submit(
                team,
                request,
                request_id=request_id,
                correlation_id=correlation_id,
                deadline=deadline,
                files=file or (),
                thread=thread,
            )
            if not wait and not watch:
                print_json({"workflow_id": workflow.id, "team": team}) if json else print(workflow.id)
                if hint := await unknown_team_hint(client, team):
                    print_error(f"the request waits for a supervisor: {hint} Cancel: `pointsman cancel {workflow.id}`")
                return Code.OK
            try:
                async with asyncio.timeout(timeout):
                    outcome = await _wait_for_outcome(client, workflow, watch=watch, json=json)
            except asyncio.CancelledError:  # Ctrl-C ends the wait, not the workflow
                print_error(
                    f"{workflow.id} continues; follow it with `pointsman watch {workflow.id}`, or cancel it with "
                    f"`pointsman cancel {workflow.id}`"
                )
                raise
            except TimeoutError:
                await _report_timeout(client, workflow, timeout, json=json)
                return Code.FAILED
            if not json:
                await print_outcome(client, outcome, workflow.id)
            elif not watch:
                print_json(outcome)
            return outcome_code(outcome)

    return run()


async def _submit_later(
    client: Client,
    team: str,
    request: str | dict[str, JsonValue],
    start: datetime,
    files: Sequence[Path],
    deadline: float | None,
    thread: str | None,
    *,
    json: bool,
) -> Code:
    """Make a schedule with a single time, and print the id of its workflow."""
    name = f"at-{uuid4().hex[:12]}"
    made = await client.schedules.create(name, team, request, at=start, deadline=deadline, files=files, thread=thread)
    workflow = client.schedules.workflow_of(team, name, start)
    if json:
        print_json({"workflow_id": workflow, "team": team, "schedule": name, "at": start.isoformat()})
    else:
        print(workflow)
    if made is None:
        print_error(f"the schedule {name} is stored, and waits for a supervisor of {team}")
    else:
        print_error(f"the request is sent at {start.isoformat()}; `pointsman schedules delete {name}` deletes it")
    return Code.OK


async def _wait_for_outcome(client: Client, workflow: Workflow, *, watch: bool, json: bool) -> Outcome:
    silence, waits = _explain_silence(client, workflow), report_waits(client, workflow, questions=not watch)
    async with notices(silence, waits, report_outages(client.bus)):
        if watch:
            return await follow(workflow, json=json)
        terminal = console(stderr=True)
        if terminal.is_terminal and not json:
            return await print_streamed_text(workflow, terminal)
        return await workflow.outcome()


async def _explain_silence(client: Client, workflow: Workflow) -> None:
    """Print the possible cause if no supervisor has admitted the request after some seconds."""
    await asyncio.sleep(NOTICE_AFTER_S)
    with suppress(BusUnavailableError):  # not reported here, because the wait for the outcome reports a lost broker
        if await is_admitted(client, workflow):
            return
        hint = await unknown_team_hint(client, workflow.team)
        reason = hint or f"is a supervisor of team {workflow.team} running?"
        print_error(
            f"no supervisor has admitted {workflow.id} yet: {reason} The request stays in the queue; check with "
            f"`pointsman doctor {workflow.team}`"
        )


async def _report_timeout(client: Client, workflow: Workflow, timeout: float | None, *, json: bool) -> None:
    admitted = await is_admitted(client, workflow)
    if json:
        print_json({"workflow_id": workflow.id, "status": "running" if admitted else QUEUED_STATUS})
    if admitted:
        print_error(
            f"workflow {workflow.id} is still running after {timeout:g} s; follow it with "
            f"`pointsman watch {workflow.id}`"
        )
        return
    hint = await unknown_team_hint(client, workflow.team)
    print_error(
        f"no supervisor of team {workflow.team} has admitted {workflow.id} within {timeout:g} s; the request stays in "
        f"the queue; check with `pointsman doctor {workflow.team}`, and follow it with `pointsman watch {workflow.id}`"
        f"{f'; {hint}' if hint else ''}"
    )
