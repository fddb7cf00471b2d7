"""The commands for workflows: watch, list, show, cancel, `tell`, resume."""

from __future__ import annotations

import re
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import typer

from pointsman.cli.arguments import Json, Since, Until, WorkflowId, parse_time, read_stdin
from pointsman.cli.render.follow import follow, print_outcome
from pointsman.cli.render.outcome import render_workflow, workflow_table
from pointsman.cli.render.output import (
    Code,
    console,
    outcome_code,
    print_error,
    print_hint,
    print_json,
    print_list,
    print_table,
    with_connection_options,
)
from pointsman.cli.render.wait_notices import notices, report_outages, report_waits
from pointsman.cli.support.ids import resolve_workflow_id
from pointsman.cli.support.session import Execution, Session, broker_command
from pointsman.cli.support.teams import is_admitted
from pointsman.client.client import WORKFLOW_STATUSES, Client, Workflow
from pointsman.client.known_teams import known_teams
from pointsman.client.operations import MessageRefusedError, NotResumableError
from pointsman.core.evolve import open_questions
from pointsman.core.views.trace import build_trace
from pointsman.core.views.trace_status import at_time, tasks_without_agent
from pointsman.errors import ConfigurationError, NotFoundError
from pointsman_schemas.base import closest_match
from pointsman_schemas.log import PlanAccepted, WorkflowEnded, WorkflowStarted

__all__ = ["cancel", "list_", "resume", "show", "tell", "watch"]

_STATUS_WORDS = {status.replace(" ", "-"): status for status in WORKFLOW_STATUSES}
_MAX_LETTERS = 100  # largest number of dead letters that `show` counts
_QUEUED_REASON = "no supervisor is running, or all slots of each supervisor are taken; check with `pointsman doctor`"


@broker_command
async def watch(session: Session, workflow: WorkflowId, json: Json = False) -> Code:
    """Print the events of a workflow, from its start to its end.

    Returns:
        The exit code.
    """
    async with session() as client:
        id = await resolve_workflow_id(client, workflow)
        found = await client.workflow(id)
        if not await is_admitted(client, found):
            print_error(f"waiting for admission by team {found.team}: {_QUEUED_REASON}")
        async with notices(report_waits(client, found, questions=False), report_outages(client.bus)):
            outcome = await follow(found, json=json)
        if not json:
            await print_outcome(client, outcome, id)
        return outcome_code(outcome)


@broker_command
async def list_(
    session: Session,
    team: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="List only workflows of this team. Default: of all teams.", show_default=False
        ),
    ] = None,
    status: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STATUS",
            help=f"List only workflows with this status: {', '.join(_STATUS_WORDS)}. May be repeated. Default: all.",
            show_default=False,
        ),
    ] = None,
    since: Since = None,
    until: Until = None,
    correlation_id: Annotated[
        str | None,
        typer.Option(metavar="ID", help="List only workflows with this correlation id.", show_default=False),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="The maximum number of workflows.")] = 20,
    json: Json = False,
) -> None:
    """List the most recently active workflows, newest first."""
    statuses = [_parse_status(each) for each in status or ()]
    first, last = parse_time(since), parse_time(until)
    filtered = any((statuses, first, last, correlation_id))

    async with session() as client:
        found = await client.list(
            team, status=statuses, since=first, until=last, correlation_id=correlation_id, limit=limit
        )
        explanation = "" if found else await _explain_no_workflows(client, team, filtered=filtered)
    documents = [{"workflow_id": summary.id, **asdict(summary)} for summary in found]
    now = datetime.now(UTC)
    print_list(documents, lambda terminal: workflow_table(found, now, terminal.width), explanation, json=json)


def _parse_status(text: str) -> str:
    """Return the status with this name. Hyphens, underscores or spaces may separate the words of the name.

    Raises:
        ConfigurationError: There is no such status.
    """
    word = "-".join(re.split(r"[\s_-]+", text.strip().lower()))
    if word not in _STATUS_WORDS:
        meant = closest_match(word, _STATUS_WORDS)
        hint = f"did you mean {meant}? Statuses:" if meant else "give one of"
        raise ConfigurationError(f"--status is {text[:40]!r}; {hint} {', '.join(_STATUS_WORDS)}")
    return _STATUS_WORDS[word]


async def _explain_no_workflows(client: Client, team: str | None, *, filtered: bool) -> str:
    """Explain an empty list. If the team is unknown, list the known teams, because its name might be misspelled."""
    known = await known_teams(client) if team is not None else ()
    if filtered and (team is None or team in known):
        return "No workflow matches. `pointsman list` shows the newest workflows."
    if team is None:
        return "No workflows yet. Start one with `pointsman submit TEAM TEXT`."
    if team in known:
        return f"No workflows of {team} yet. Start one with `pointsman submit {team} TEXT`."
    return f"No workflows of {team}, and no supervisor. Known teams: {', '.join(sorted(known)) or 'none'}."


@broker_command
async def show(session: Session, workflow: WorkflowId, json: Json = False) -> None:
    """Show a workflow: request, plans, tasks, results, outcome."""
    async with session() as client:
        id = await resolve_workflow_id(client, workflow)
        try:
            entries = await client.entries(id)
        except NotFoundError:
            if (queued := await client.queued_request(id)) is None:
                raise
            if json:
                print_json({"workflow_id": id, "team": queued.team, "status": queued.status})
            else:
                print(f"{id} is waiting for admission by team {queued.team}: {_QUEUED_REASON}.")
            return
        reports, alive, now = await client.progress(id), await client.operations.live_names(), datetime.now(UTC)
        letters = len(await client.operations.dead_letters(workflow=id, limit=_MAX_LETTERS))
    if json:
        started = next((entry for entry in entries if isinstance(entry, WorkflowStarted)), None)
        root = at_time(build_trace(entries, reports), now, alive) if started else None
        ended = last if isinstance(last := entries[-1], WorkflowEnded) else None
        plans = [entry.plan for entry in entries if isinstance(entry, PlanAccepted)]
        print_json(
            {
                "workflow_id": id,
                "team": started.team if started else None,
                "status": root.status if root else "running",
                "waiting_for": sorted(open_questions(entries)) if not ended else [],
                "waiting_for_agents": sorted({str(task.agent) for task in tasks_without_agent(root)}) if root else [],
                "request": started.input if started else None,
                "plan": plans[-1] if plans else None,
                "plans": plans,
                "outcome": ended.outcome if ended else None,
                "entries": entries,
            }
        )
    else:
        print_table(console(), render_workflow(entries, reports, now, alive))
        if letters:
            count = f"{letters}{' or more' if letters == _MAX_LETTERS else ''}"
            noun = "dead letter" if letters == 1 else "dead letters"
            print_hint(console(), f"{count} {noun}: `pointsman dead list --workflow {id}`", "yellow")


@broker_command
async def cancel(
    session: Session,
    workflow: WorkflowId,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="The reason, for the log.")] = "",
    json: Json = False,
) -> Code:
    """Cancel a workflow.

    The supervisor ends the workflow when it has read the cancellation.

    Returns:
        The exit code.
    """
    async with session() as client:
        id = await resolve_workflow_id(client, workflow)
        found = await client.workflow(id)
        outcome = await found.cancel(reason)
        note = "" if outcome or await is_admitted(client, found) else await _queued_cancel_note(client, found)
    if outcome is not None:
        if json:
            print_json({"workflow_id": id, "cancelled": False, "status": outcome.status})
        print_error(f"workflow {id} has already ended: {outcome.status}; nothing was sent")
        return Code.FAILED
    print_json({"workflow_id": id, "cancelled": True}) if json else print(f"Cancellation of {id} sent.")
    if note:
        print_error(note)
    return Code.OK


@broker_command
def tell(
    session: Session,
    workflow: WorkflowId,
    text: Annotated[
        str,
        typer.Argument(metavar="TEXT", help="The message, of at most 4,000 characters; - reads standard input."),
    ],
    message_id: Annotated[
        str | None,
        typer.Option(
            "--id",
            metavar="ID",
            help="The id of the message. A second message with this id has no effect. Default: a new id.",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
) -> Execution:
    """Send a message to a running workflow.

    Tasks that start later, and agents with `listen`, receive the message. If the workflow has ended and belongs to a
    thread, the message becomes the next turn of the thread.

    Returns:
        The execution of the command.
    """
    said = read_stdin().strip() if text == "-" else text

    async def run() -> Code:
        async with session() as client:
            id = await resolve_workflow_id(client, workflow)
            try:
                told = await client.tell(id, said, message_id=message_id)
            except MessageRefusedError as error:
                if json:
                    print_json({"workflow_id": id, "taken": False, "message": str(error)})
                print_error(str(error))
                return Code.FAILED
        if json:
            taken = told.number is not None or told.next_turn is not None
            result = {"number": told.number, "next_turn": told.next_turn, "message": told.message}
            print_json({"workflow_id": id, "taken": taken or None, **result})
        else:
            print(f"{told.message[:1].upper()}{told.message[1:]}.")
        return Code.OK

    return run()


@broker_command
async def resume(
    session: Session,
    workflow: WorkflowId,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="The reason, for the log.")] = "",
    json: Json = False,
) -> Code:
    """Do the failed tasks of an ended workflow again.

    A workflow that ended as failed or partial gets a new round. The results of successful tasks stay. The new round
    gets the full limits of the workflow, and the outcome of the round replaces the old outcome.

    Returns:
        The exit code.
    """
    async with session() as client:
        id = await resolve_workflow_id(client, workflow)
        try:
            resumed = await client.operations.resume(id, reason=reason)
        except NotResumableError as error:
            if json:
                print_json({"workflow_id": id, "resumed": False, "reason": str(error)})
            print_error(str(error))
            return Code.FAILED
    if json:
        print_json({"workflow_id": id, "resumed": True, "round": resumed.round, "tasks": resumed.tasks})
    else:
        again = ", ".join(resumed.tasks) or "the plan or the answer"
        print(f"Workflow {id} continues in round {resumed.round}; done again: {again}.")
        print(with_connection_options(f"`pointsman watch {id}` shows its events."))
    return Code.OK


async def _queued_cancel_note(client: Client, workflow: Workflow) -> str:
    """Explain the cancellation of a request that no supervisor has admitted; empty if there is a supervisor."""
    if any(card.name == workflow.team for card in await client.operations.teams()):
        return ""
    return (
        f"team {workflow.team} has no supervisor; {workflow.id} ends without any work once a supervisor starts, and "
        "`pointsman list` shows it as asked to end until then"
    )
