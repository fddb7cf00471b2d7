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
from pointsman.cli.render.live_trace import Growing
from pointsman.cli.render.output import Code, complain, console, emit, lay_out, outcome_code, write
from pointsman.cli.render.tree import tree
from pointsman.cli.render.viewport import within
from pointsman.cli.render.wait_notices import tell_of_outages, tell_who_is_awaited, telling
from pointsman.cli.support.ids import the_workflow
from pointsman.cli.support.session import session, who
from pointsman.client.client import Client, Workflow
from pointsman.core.evolve import pending_approvals
from pointsman.core.views.trace import build_trace
from pointsman.core.views.trace_status import at_time, tasks_without_agent
from pointsman.errors import BusUnavailable, NotFound
from pointsman.telemetry.otlp import to_otlp
from pointsman_schemas.log import PlanAccepted, WorkflowEnded, WorkflowStarted

__all__ = ["cancel", "list_", "show", "taken", "teams_seen", "trace", "watch"]

_WAITS = "its supervisor is not running, or has as many workflows as it may: see `pointsman doctor`"
_FRAME = 0.1  # seconds between two drawings of a tree that grows: smooth enough, at a few per cent of a core
_REST = 9  # times as long as drawing took, which for hundreds of tasks is not short
_AROUND = 4  # lines of a screen that the tree leaves: its head, the command above it, and a problem below it
_SEEN = 100  # workflows whose teams are named where one asked for is not known


def watch(given: str, *, url: str | None, namespace: str | None, json: bool) -> Code:
    async def run() -> Code:
        async with session(url, namespace) as client:
            workflow = await the_workflow(client, given)
            found = await client.workflow(workflow)
            if not await taken(client, found):
                complain(f"waiting for admission by team {found.team}; {_WAITS}")
            async with telling(tell_who_is_awaited(client, found), tell_of_outages(client.bus)):
                outcome = await follow(found, json=json)
            if not json:
                await print_outcome(client, outcome, workflow)
            return outcome_code(outcome)

    return asyncio.run(run())


def list_(team: str | None, *, limit: int, url: str | None, namespace: str | None, json: bool) -> Code:
    async def run() -> Code:
        async with session(url, namespace) as client:
            found = await client.list(team, limit=limit)
            none = "" if found else await _no_workflows(client, team)
        if json:
            for summary in found:
                emit({"workflow_id": summary.id, **asdict(summary)})
        elif found:
            terminal = console()
            lay_out(terminal, render.summaries(found, datetime.now(UTC), terminal.width))
        else:
            print(none)
        return Code.OK

    return asyncio.run(run())


async def _no_workflows(client: Client, team: str | None) -> str:
    """A team that nobody has seen may be mistyped: the others are named, and nobody is invited to ask it."""
    if team is None:
        return "No workflows yet. `pointsman submit TEAM TEXT` starts one."
    seen = await teams_seen(client)
    if team in seen:
        return f"No workflows of {team} yet. `pointsman submit {team} TEXT` starts one."
    return f"No workflows of {team}, and no supervisor. Teams seen: {', '.join(sorted(seen)) or 'none'}."


async def teams_seen(client: Client) -> set[str]:
    """Those that have a supervisor, or have taken a request. One that is only asked may be mistyped."""
    admitted = {each.team for each in await client.list(limit=_SEEN) if each.admitted}
    return admitted | {card.name for card in await client.teams()}


def show(given: str, *, url: str | None, namespace: str | None, json: bool) -> Code:
    async def run() -> Code:
        async with session(url, namespace) as client:
            workflow = await the_workflow(client, given)
            try:
                entries = await client.entries(workflow)
            except NotFound:
                if (waits := await client.waiting(workflow)) is None:
                    raise
                if json:
                    emit({"workflow_id": workflow, "team": waits.team, "status": waits.status})
                else:
                    print(f"{workflow} is waiting for admission by team {waits.team}; {_WAITS}.")
                return Code.OK
            reports, alive, now = await client.progress(workflow), await client.alive(), datetime.now(UTC)
        if json:
            started = next((entry for entry in entries if isinstance(entry, WorkflowStarted)), None)
            root = at_time(build_trace(entries, reports), now, alive) if started else None
            ended = next((entry for entry in entries if isinstance(entry, WorkflowEnded)), None)
            plans = [entry.plan for entry in entries if isinstance(entry, PlanAccepted)]
            emit({
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
            lay_out(console(), render.show(entries, reports, now, alive))
        return Code.OK

    return asyncio.run(run())


def trace(given: str, *, follow: bool, otlp: str | None, url: str | None, namespace: str | None, json: bool) -> Code:
    async def run() -> Code:
        async with session(url, namespace) as client:
            workflow = await the_workflow(client, given)
            terminal = console()
            if follow:
                async with telling(tell_of_outages(client.bus)):
                    await _draw_while_it_runs(client, await client.workflow(workflow), terminal)
            now = datetime.now(UTC)
            root = at_time(await client.trace(workflow), now, await client.alive())
            where = client.subjects.namespace
        if otlp is not None:
            request = to_otlp(root, namespace=where, workflow_id=workflow, now=now)
            write(otlp, json_module.dumps(request) + "\n")
            if otlp != "-":
                (spans,) = (scope["spans"] for scope in request["resourceSpans"][0]["scopeSpans"])
                complain(f"{otlp} has the trace of {workflow} as OTLP/JSON; spans: {len(spans)}")
        if json:
            emit(root)
        elif otlp != "-":
            lay_out(terminal, tree(root, now, terminal.width))
        return Code.OK

    return asyncio.run(run())


async def _draw_while_it_runs(client: Client, workflow: Workflow, terminal: Console) -> None:
    """Until it has ended: the tree, drawn anew as it grows. Where there is no terminal it is only waited for."""
    growing = Growing(client, workflow)

    async def redraw(live: Live) -> None:
        while True:
            began = monotonic()
            if (root := growing.trace()) is not None:
                now = datetime.now(UTC)
                with suppress(BusUnavailable):  # it is drawn when the broker is back
                    shown = within(at_time(root, now, await client.alive()), terminal.height - _AROUND)
                    live.update(tree(shown, now, terminal.width), refresh=True)
            await asyncio.sleep(max(_FRAME, _REST * (monotonic() - began)))

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
            workflow = await the_workflow(client, given)
            found = await client.workflow(workflow)
            ended = await found.cancel(reason, by=who(by))
            waits = "" if ended is not None or await taken(client, found) else await _whose_end_waits(client, found)
        if ended is not None:
            if json:
                emit({"workflow_id": workflow, "cancelled": False, "status": ended.status})
            complain(f"workflow {workflow} has already ended: {ended.status}; nothing was sent")
            return Code.FAILED
        emit({"workflow_id": workflow, "cancelled": True}) if json else print(f"Asked {workflow} to end.")
        if waits:
            complain(waits)
        return Code.OK

    return asyncio.run(run())


async def _whose_end_waits(client: Client, workflow: Workflow) -> str:
    """What becomes of the cancellation of a request that nobody has taken: only a supervisor of its team ends it."""
    if any(card.name == workflow.team for card in await client.teams()):
        return ""
    return (
        f"team {workflow.team} has no supervisor; {workflow.id} ends, with nothing done for it, once one starts, "
        "and until then `pointsman list` shows that it is asked to end"
    )


async def taken(client: Client, workflow: Workflow) -> bool:
    """Whether a supervisor has admitted it: only then are there views of it."""
    return await client.bus.last("log", client.subjects.log(workflow.team, workflow.id)) is not None
