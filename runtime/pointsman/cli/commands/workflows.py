"""The commands about workflows that were asked for: watch, list, show, trace, cancel."""

from __future__ import annotations

import asyncio
import json as json_module
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from time import monotonic

from rich.console import Console
from rich.live import Live

from pointsman.cli.render import outcome as render
from pointsman.cli.render.follow import follow, print_outcome
from pointsman.cli.render.live_trace import LiveTrace
from pointsman.cli.render.output import Code, console, outcome_code, print_error, print_json, print_table, write_json
from pointsman.cli.render.tree import render_tree
from pointsman.cli.render.viewport import fit_to_lines
from pointsman.cli.render.wait_notices import notices, report_missing_agents, report_outages
from pointsman.cli.support.ids import resolve_workflow_id
from pointsman.cli.support.session import default_by, session
from pointsman.client.client import Client, Workflow
from pointsman.core.evolve import pending_approvals
from pointsman.core.views.trace import build_trace
from pointsman.core.views.trace_status import at_time, tasks_without_agent
from pointsman.errors import BusUnavailableError, NotFoundError
from pointsman.telemetry.otlp import to_otlp
from pointsman_schemas.log import PlanAccepted, WorkflowEnded, WorkflowStarted

__all__ = ["cancel", "is_admitted", "known_teams", "list_", "show", "trace", "watch"]

_QUEUED_REASON = "its supervisor is not running, or has as many workflows as it may: see `pointsman doctor`"
_FRAME_INTERVAL_S = 0.1  # seconds between two drawings of a tree that grows: smooth enough, at a few per cent of a core
_REDRAW_PAUSE_FACTOR = 9  # times as long as drawing took, which for hundreds of tasks is not short
_RESERVED_LINES = 4  # lines of a screen that the tree leaves: its head, the command above it, and a problem below it
_MAX_WORKFLOWS = 100  # workflows whose teams are named where one asked for is not known


def watch(given: str, *, url: str | None, namespace: str | None, json: bool) -> Code:
    async def run() -> Code:
        async with session(url, namespace) as client:
            workflow = await resolve_workflow_id(client, given)
            found = await client.workflow(workflow)
            if not await is_admitted(client, found):
                print_error(f"waiting for admission by team {found.team}; {_QUEUED_REASON}")
            async with notices(report_missing_agents(client, found), report_outages(client.bus)):
                outcome = await follow(found, json=json)
            if not json:
                await print_outcome(client, outcome, workflow)
            return outcome_code(outcome)

    return asyncio.run(run())


def list_(team: str | None, *, limit: int, url: str | None, namespace: str | None, json: bool) -> Code:
    async def run() -> Code:
        async with session(url, namespace) as client:
            found = await client.list(team, limit=limit)
            none = "" if found else await _explain_no_workflows(client, team)
        if json:
            for summary in found:
                print_json({"workflow_id": summary.id, **asdict(summary)})
        elif found:
            terminal = console()
            print_table(terminal, render.workflow_table(found, datetime.now(UTC), terminal.width))
        else:
            print(none)
        return Code.OK

    return asyncio.run(run())


async def _explain_no_workflows(client: Client, team: str | None) -> str:
    """A team that nobody has seen may be mistyped: the others are named, and nobody is invited to ask it."""
    if team is None:
        return "No workflows yet. `pointsman submit TEAM TEXT` starts one."
    seen = await known_teams(client)
    if team in seen:
        return f"No workflows of {team} yet. `pointsman submit {team} TEXT` starts one."
    return f"No workflows of {team}, and no supervisor. Teams seen: {', '.join(sorted(seen)) or 'none'}."


async def known_teams(client: Client) -> set[str]:
    """Those that have a supervisor, or have taken a request. One that is only asked may be mistyped."""
    admitted = {each.team for each in await client.list(limit=_MAX_WORKFLOWS) if each.admitted}
    return admitted | {card.name for card in await client.operations.teams()}


def show(given: str, *, url: str | None, namespace: str | None, json: bool) -> Code:
    async def run() -> Code:
        async with session(url, namespace) as client:
            workflow = await resolve_workflow_id(client, given)
            try:
                entries = await client.entries(workflow)
            except NotFoundError:
                if (waits := await client.queued_request(workflow)) is None:
                    raise
                if json:
                    print_json({"workflow_id": workflow, "team": waits.team, "status": waits.status})
                else:
                    print(f"{workflow} is waiting for admission by team {waits.team}; {_QUEUED_REASON}.")
                return Code.OK
            reports, alive, now = (
                await client.progress(workflow),
                await client.operations.live_names(),
                datetime.now(UTC),
            )
        if json:
            started = next((entry for entry in entries if isinstance(entry, WorkflowStarted)), None)
            root = at_time(build_trace(entries, reports), now, alive) if started else None
            ended = next((entry for entry in entries if isinstance(entry, WorkflowEnded)), None)
            plans = [entry.plan for entry in entries if isinstance(entry, PlanAccepted)]
            print_json({
                "workflow_id": workflow,
                "team": started.team if started else None,
                "status": root.status if root else "running",
                "waiting_for": sorted(pending_approvals(entries)) if not ended else [],
                "waiting_for_agents": sorted({str(task.agent) for task in tasks_without_agent(root)}) if root else [],
                "request": started.input if started else None,
                "plan": plans[-1] if plans else None,
                "plans": plans,
                "outcome": ended.outcome if ended else None,
                "entries": entries,
            })  # fmt: skip
        else:
            print_table(console(), render.render_workflow(entries, reports, now, alive))
        return Code.OK

    return asyncio.run(run())


def trace(given: str, *, follow: bool, otlp: str | None, url: str | None, namespace: str | None, json: bool) -> Code:
    async def run() -> Code:
        async with session(url, namespace) as client:
            workflow = await resolve_workflow_id(client, given)
            terminal = console()
            if follow:
                async with notices(report_outages(client.bus)):
                    await _draw_live_trace(client, await client.workflow(workflow), terminal)
            now = datetime.now(UTC)
            root = at_time(await client.trace(workflow), now, await client.operations.live_names())
            where = client.subjects.namespace
        if otlp is not None:
            request = to_otlp(root, namespace=where, workflow_id=workflow, now=now)
            write_json(otlp, json_module.dumps(request) + "\n")
            if otlp != "-":
                (spans,) = (scope["spans"] for scope in request["resourceSpans"][0]["scopeSpans"])
                print_error(f"{otlp} has the trace of {workflow} as OTLP/JSON; spans: {len(spans)}")
        if json:
            print_json(root)
        elif otlp != "-":
            print_table(terminal, render_tree(root, now, terminal.width))
        return Code.OK

    return asyncio.run(run())


async def _draw_live_trace(client: Client, workflow: Workflow, terminal: Console) -> None:
    """Until it has ended: the tree, drawn anew as it grows. Where there is no terminal it is only waited for."""
    growing = LiveTrace(client, workflow)

    async def redraw(live: Live) -> None:
        while True:
            began = monotonic()
            if (root := growing.trace()) is not None:
                now = datetime.now(UTC)
                with suppress(BusUnavailableError):  # it is drawn when the broker is back
                    shown = fit_to_lines(
                        at_time(root, now, await client.operations.live_names()), terminal.height - _RESERVED_LINES
                    )
                    live.update(render_tree(shown, now, terminal.width), refresh=True)
            await asyncio.sleep(max(_FRAME_INTERVAL_S, _REDRAW_PAUSE_FACTOR * (monotonic() - began)))

    with Live(console=terminal, auto_refresh=False, transient=True, vertical_overflow="ellipsis") as live:
        drawing = asyncio.ensure_future(redraw(live)) if terminal.is_terminal else None
        try:
            await growing.follow()
        finally:
            if drawing is not None:
                drawing.cancel()


def cancel(given: str, *, reason: str, by: str | None, url: str | None, namespace: str | None, json: bool) -> Code:
    async def run() -> Code:
        async with session(url, namespace) as client:
            workflow = await resolve_workflow_id(client, given)
            found = await client.workflow(workflow)
            ended = await found.cancel(reason, by=default_by(by))
            waits = (
                ""
                if ended is not None or await is_admitted(client, found)
                else await _queued_cancel_note(client, found)
            )
        if ended is not None:
            if json:
                print_json({"workflow_id": workflow, "cancelled": False, "status": ended.status})
            print_error(f"workflow {workflow} has already ended: {ended.status}; nothing was sent")
            return Code.FAILED
        print_json({"workflow_id": workflow, "cancelled": True}) if json else print(f"Asked {workflow} to end.")
        if waits:
            print_error(waits)
        return Code.OK

    return asyncio.run(run())


async def _queued_cancel_note(client: Client, workflow: Workflow) -> str:
    """What becomes of the cancellation of a request that nobody has taken: only a supervisor of its team ends it."""
    if any(card.name == workflow.team for card in await client.operations.teams()):
        return ""
    return (
        f"team {workflow.team} has no supervisor; {workflow.id} ends, with nothing done for it, once one starts, "
        "and until then `pointsman list` shows that it is asked to end"
    )


async def is_admitted(client: Client, workflow: Workflow) -> bool:
    """Whether a supervisor has admitted it: only then are there views of it."""
    return await client.bus.last("log", client.subjects.log(workflow.team, workflow.id)) is not None
