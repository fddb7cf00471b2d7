"""The commands about workflows: submit, watch, list, show, trace, cancel, approvals, approve, reject."""

from __future__ import annotations

import asyncio
import json as json_module
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from difflib import get_close_matches

from pydantic import JsonValue
from rich.console import Console, RenderableType
from rich.live import Live

from pointsman.cli import render
from pointsman.cli.output import Code, complain, console, emit, hint, outcome_code, prose, say, write
from pointsman.cli.session import session
from pointsman.client import Client, Workflow, WorkflowEvent
from pointsman.core.approvals import unanswered
from pointsman.core.trace import build
from pointsman.engine.dead_letters import DeadLetters
from pointsman.errors import BusUnavailable, ConfigurationError, NotFound
from pointsman.telemetry.otlp import to_otlp
from pointsman_schemas.events import Delta, Outcome, Progress
from pointsman_schemas.ids import workflow_id_for
from pointsman_schemas.log import (
    Entry,
    PlanAccepted,
    WorkflowEnded,
    WorkflowStarted,
)
from pointsman_schemas.strict_json import parse_json

__all__ = ["answer", "approvals", "cancel", "follow", "list_", "show", "submit", "trace", "watch"]

_WAITS = "its supervisor is not running, or has as many workflows as it may: see `pointsman doctor`"
_FRAME = 0.1  # seconds between two drawings of a tree that grows: smooth enough, at a few per cent of a core
_ID_LENGTH = len(workflow_id_for("", ""))
_NAMED = 5  # workflows that are named where the beginning of an id fits several
_SEEN = 100  # workflows whose teams are named where one asked for is not known
_PATIENCE = 3.0  # seconds without a sign of life before the caller is told what may be missing; admission takes ms


def submit(
    team: str, text: str | None, *, input_json: str | None, request_id: str | None, correlation_id: str | None,
    deadline: float | None, wait: bool, watch: bool, timeout: float | None, url: str | None, namespace: str | None,
    json: bool,
) -> Code:  # fmt: skip
    request = _request(text, input_json)

    async def run() -> Code:
        async with session(url, namespace, create=True) as client:
            workflow = await client.submit(
                team, request, request_id=request_id, correlation_id=correlation_id, deadline=deadline
            )
            if not wait and not watch:
                emit({"workflow_id": workflow.id, "team": team}) if json else print(workflow.id)
                if unknown := await _not_seen(client, team):
                    complain(f"the request waits for a supervisor: {unknown} `pointsman cancel {workflow.id}` asks "
                             "for its end")  # fmt: skip
                return Code.OK
            try:
                async with asyncio.timeout(timeout):
                    outcome = await _outcome(client, workflow, watch=watch, json=json)
            except TimeoutError:
                taken = await _taken(client, workflow)
                if json:
                    emit({"workflow_id": workflow.id, "status": "running" if taken else "waiting"})
                if taken:
                    complain(f"workflow {workflow.id} is still running after {timeout} s; "
                             f"`pointsman watch {workflow.id}` follows it")  # fmt: skip
                else:
                    complain(f"no supervisor of {team!r} has taken {workflow.id} within {timeout} s; it waits in the "
                             f"stream, and `pointsman watch {workflow.id}` follows it once one has; `pointsman doctor "
                             f"{team}` looks for what is missing")  # fmt: skip
                return Code.FAILED
            if not json:
                await _print_outcome(client, outcome, workflow.id)
            elif not watch:
                emit(outcome)
            return outcome_code(outcome)

    return asyncio.run(run())


def watch(given: str, *, url: str | None, namespace: str | None, json: bool) -> Code:
    async def run() -> Code:
        async with session(url, namespace) as client:
            workflow = await _whole(client, given)
            found = await client.workflow(workflow)
            if await client.bus.last("log", client.subjects.log(found.team, workflow)) is None:
                complain(f"waiting for admission by team {found.team}; {_WAITS}")
            outcome = await follow(found, json=json)
            if not json:
                await _print_outcome(client, outcome, workflow)
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
            console().print(render.summaries(found, datetime.now(UTC)))
        else:
            print(none)
        return Code.OK

    return asyncio.run(run())


async def _no_workflows(client: Client, team: str | None) -> str:
    """A team that nobody has seen may be mistyped: the others are named, and nobody is invited to ask it."""
    if team is None:
        return "No workflows yet. `pointsman submit TEAM TEXT` starts one."
    seen = await _teams_seen(client)
    if team in seen:
        return f"No workflows of {team} yet. `pointsman submit {team} TEXT` starts one."
    return f"No workflows of {team}, and no supervisor. Teams seen: {', '.join(sorted(seen)) or 'none'}."


async def _teams_seen(client: Client) -> set[str]:
    """Those that have a supervisor, or have taken a request. One that is only asked may be mistyped."""
    admitted = {each.team for each in await client.list(limit=_SEEN) if each.admitted}
    return admitted | {card.name for card in await client.teams()}


async def _not_seen(client: Client, team: str) -> str:
    """What names the teams there are, where `team` is none of them; else nothing."""
    if any(card.name == team for card in await client.teams()) or team in (seen := await _teams_seen(client)):
        return ""
    meant = "".join(f", did you mean {name}?" for name in get_close_matches(team, seen, 1)) or "."
    return f"no team {team} was seen here yet{meant} Teams seen: {', '.join(sorted(seen)) or 'none'}."


def show(given: str, *, url: str | None, namespace: str | None, json: bool) -> Code:
    async def run() -> Code:
        async with session(url, namespace) as client:
            workflow = await _whole(client, given)
            try:
                entries = await client.entries(workflow)
            except NotFound:
                if (team := await client.waiting(workflow)) is None:
                    raise
                if json:
                    emit({"workflow_id": workflow, "team": team, "status": "waiting"})
                else:
                    print(f"{workflow} is waiting for admission by team {team}; {_WAITS}.")
                return Code.OK
        if json:
            started = next((entry for entry in entries if isinstance(entry, WorkflowStarted)), None)
            ended = next((entry for entry in entries if isinstance(entry, WorkflowEnded)), None)
            plans = [entry.plan for entry in entries if isinstance(entry, PlanAccepted)]
            emit({
                "workflow_id": workflow,
                "team": started.team if started else None,
                "status": ended.outcome.status if ended else "running",
                "waiting_for": sorted(unanswered(entries)) if not ended else [],
                "request": started.input if started else None,
                "plan": plans[-1] if plans else None,
                "plans": plans,
                "outcome": ended.outcome if ended else None,
                "entries": entries,
            })  # fmt: skip
        else:
            console().print(render.show(entries))
        return Code.OK

    return asyncio.run(run())


def trace(given: str, *, follow: bool, otlp: str | None, url: str | None, namespace: str | None, json: bool) -> Code:
    async def run() -> Code:
        async with session(url, namespace) as client:
            workflow = await _whole(client, given)
            terminal = console()
            if follow:
                await _draw_while_it_runs(await client.workflow(workflow), terminal)
            root = await client.trace(workflow)
            where = client.subjects.namespace
        now = datetime.now(UTC)
        if otlp is not None:
            write(otlp, json_module.dumps(to_otlp(root, namespace=where, workflow_id=workflow, now=now)) + "\n")
        if json:
            emit(root)
        elif otlp != "-":
            terminal.print(render.trace(root, now, terminal.width))
        return Code.OK

    return asyncio.run(run())


async def _draw_while_it_runs(workflow: Workflow, terminal: Console) -> None:
    """Until it has ended: the tree, drawn anew as it grows. Where there is no terminal it is only waited for."""
    entries: list[Entry] = []
    reports: list[Progress] = []

    def drawn() -> RenderableType:
        now = datetime.now(UTC)
        return render.trace(build(entries, reports), now, terminal.width) if entries else ""

    async def redraw(live: Live) -> None:
        while True:
            live.update(drawn(), refresh=True)
            await asyncio.sleep(_FRAME)

    with Live(console=terminal, auto_refresh=False, transient=True, vertical_overflow="ellipsis") as live:
        drawing = asyncio.ensure_future(redraw(live)) if terminal.is_terminal else None
        try:
            async for event in workflow.events():
                if isinstance(event, Progress):
                    reports.append(event)
                else:
                    entries.append(event)
        finally:
            if drawing is not None:
                drawing.cancel()


def cancel(workflow: str, *, reason: str, url: str | None, namespace: str | None, json: bool) -> Code:
    async def run() -> Code:
        async with session(url, namespace) as client:
            found = await client.workflow(workflow)
            ended = await found.cancel(reason, by="pointsman cancel")
            waits = "" if ended is not None or await _taken(client, found) else await _whose_end_waits(client, found)
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


def approvals(workflow: str | None, *, url: str | None, namespace: str | None, json: bool) -> Code:
    async def run() -> Code:
        async with session(url, namespace) as client:
            found = await client.approvals(workflow)
        if json:
            for approval in found:
                emit(approval)
        elif found:
            console().print(render.approvals(found, datetime.now(UTC)))
        else:
            print("Nothing waits for approval.")
        return Code.OK

    return asyncio.run(run())


def answer(
    approval: str, *, approve: bool, input_json: str | None, reason: str, url: str | None, namespace: str | None,
    json: bool,
) -> Code:  # fmt: skip
    given = None if input_json is None else parse_json((sys.stdin.read() if input_json == "-" else input_json).encode())

    async def run() -> Code:
        async with session(url, namespace) as client:
            if approve:
                said = await client.approve(approval, input=given, by="pointsman approve")
            else:
                said = await client.reject(approval, reason=reason, by="pointsman reject")
        if json:
            emit({"approval": approval, "counted": said.counted, "said": said.said})
        elif said.counted is not False:
            print(f"{said.said}.")  # it begins with an id, which is to be copied
        if said.counted is False:
            complain(said.said)
        return Code.FAILED if said.counted is False else Code.OK

    return asyncio.run(run())


async def follow(workflow: Workflow, *, json: bool) -> Outcome:
    """Print the workflow's events as they happen, and return how it ended."""
    story, terminal = render.Story(), console()

    async def heard(delta: Delta) -> None:
        if json:
            emit({"delta": delta})
        else:
            for line in story.heard(delta):
                say(terminal, line)

    async with await workflow.listen(heard):
        async for event in workflow.events():
            if json:
                emit(_tagged(event))
            else:
                for line in story.lines(event):
                    say(terminal, line)
            if isinstance(event, WorkflowEnded):
                return event.outcome
    return await workflow.outcome()


async def _print_outcome(client: Client, outcome: Outcome, workflow: str) -> None:
    """The answer on standard output; what is missing in it, and how it went, on standard error."""
    prose(console(), render.answer(outcome))
    terminal = console(stderr=True)
    terminal.print()
    terminal.print(render.outcome(outcome))
    hint(terminal, f"`pointsman trace {workflow}` shows who did what.")
    if outcome.status == "failed" and await DeadLetters(client.bus, client.subjects).list(workflow=workflow, limit=1):
        hint(terminal, f"`pointsman dead list --workflow {workflow}` shows what was given up on.")


async def _whole(client: Client, given: str) -> str:
    """The id that `given` is or begins. Only for commands that look: what acts wants it whole.

    Raises:
        ConfigurationError: several begin so.
    """
    if len(given) >= _ID_LENGTH or len(given) <= len("wf_") or not given.startswith("wf_"):
        return given
    found = await client.beginning(given)
    if given in found or not found:
        return given
    if len(found) > 1:
        named = ", ".join(found[:_NAMED]) + (", ..." if len(found) > _NAMED else "")
        raise ConfigurationError(f"{len(found)} workflows begin with {given}: {named}; give more of the id")
    return found[0]


async def _outcome(client: Client, workflow: Workflow, *, watch: bool, json: bool) -> Outcome:
    async with asyncio.TaskGroup() as group:
        hint = group.create_task(_explain_silence(client, workflow))
        outcome = await (follow(workflow, json=json) if watch else workflow.outcome())
        hint.cancel()
    return outcome


async def _explain_silence(client: Client, workflow: Workflow) -> None:
    await asyncio.sleep(_PATIENCE)
    with suppress(BusUnavailable):  # whoever waits for the outcome goes on waiting, and says so in the end
        if await _taken(client, workflow):
            return
        unknown = await _not_seen(client, workflow.team)
        why = unknown or f"is a supervisor of {workflow.team!r} running?"
        complain(f"nobody has taken the request of {workflow.id} yet: {why} It waits in the stream; "
                 f"`pointsman doctor {workflow.team}` looks for what is missing")  # fmt: skip


async def _taken(client: Client, workflow: Workflow) -> bool:
    """Whether a supervisor has admitted it: only then are there views of it."""
    return await client.bus.last("log", client.subjects.log(workflow.team, workflow.id)) is not None


def _tagged(event: WorkflowEvent) -> Mapping[str, WorkflowEvent]:
    return {"progress": event} if isinstance(event, Progress) else {"log": event}


def _request(text: str | None, input_json: str | None) -> str | dict[str, JsonValue]:
    if (text is None) == (input_json is None):
        raise ConfigurationError("give the request either as TEXT or with --input-json, and not both")
    if input_json is None:
        given = sys.stdin.read().strip() if text == "-" else text or ""
        if not given:
            raise ConfigurationError("the request is empty; give it as TEXT, or pipe it in with -")
        return given
    value = parse_json((sys.stdin.read() if input_json == "-" else input_json).encode())
    if not isinstance(value, dict):
        raise ConfigurationError(f"--input-json is {json_module.dumps(value)[:80]}; expected a JSON object")
    return value
