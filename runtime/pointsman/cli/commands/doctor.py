"""The command doctor: what is there, what is wrong with it, and what to do."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from urllib.parse import urlsplit

from rich.text import Text

from pointsman.app import load_team
from pointsman.cli.commands.agents import (
    circuit_state,
    definition_difference,
    group_by_name,
    orphaned_handlers,
    schema_difference,
)
from pointsman.cli.commands.workflows import known_teams
from pointsman.cli.render.output import Code, console, one_line, print_event, print_hint, print_json
from pointsman.cli.support.session import session, settings_for
from pointsman.client.client import QUEUED_STATUS, Client
from pointsman.clock import SystemClock
from pointsman.core.model.agent_health import open_circuits
from pointsman.core.views.formatting import format_seconds
from pointsman.core.views.trace import build_trace
from pointsman.core.views.trace_status import at_time, tasks_without_agent
from pointsman.engine.log.reader import gather_batched
from pointsman.engine.process.discovery import installed_agents
from pointsman.engine.supervisor.retention import oldest_message, retention_of
from pointsman.engine.supervisor.stream_integrity import find_lost_log, find_lost_work, stream_bounds
from pointsman.errors import ConfigurationError, NotFoundError, PermissionDeniedError, PointsmanError
from pointsman.llm.factory import selected_model
from pointsman.ports.bus import QueueDepth, StreamKind
from pointsman.settings import Settings
from pointsman.util.environment import variable
from pointsman_schemas.card import AgentCard, Role
from pointsman_schemas.ids import TOKEN_PATTERN
from pointsman_schemas.team import ANY, Team

__all__ = ["Check", "doctor"]

_TEXT_COLUMN = 18  # the column in which what was seen begins: behind ok or BAD, and the name
_RECHECK_DELAY_S = 0.5  # seconds in which a supervisor that runs has taken what waits: it does so in milliseconds
_MAX_COUNTED = 1_000  # dead letters that are counted; more are "or more"
_RETAINED_STREAMS: Sequence[StreamKind] = ("work", "log")
_RETENTION_TOLERANCE = timedelta(
    days=1
)  # they are trimmed every hour; what is left for a day is left on purpose, or by nobody
_MAX_WORKFLOWS = 100  # workflows whose tasks are looked at
_LATENCY_SAMPLES = 3  # times the broker is asked how long it takes
_SLOW_BROKER_S = 0.25  # seconds: 500 times what a broker on the same machine takes; one on another continent takes less
_CONNECT_TIMEOUT_S = 2.0  # seconds to open a connection to the telemetry collector; it is near, or it is not there


@dataclass(frozen=True, slots=True)
class Check:
    """One line of `doctor`. `advice` says what to do when it is not `ok`."""

    name: str
    ok: bool
    finding: str
    advice: str = ""


def doctor(target: str | None, *, url: str | None, namespace: str | None, json: bool) -> Code:
    settings = settings_for(url, namespace, log_level="error")
    team = _resolve_team(target) if target else None

    async def run() -> Code:
        terminal, sound = console(), True
        async with aclosing(_run_checks(settings, team)) as checks:  # a pipe that is closed ends the connection, too
            async for check in checks:
                sound = sound and check.ok
                if json:
                    print_json(replace(check, advice="") if check.ok else check)
                    continue
                line = Text("ok   " if check.ok else "BAD  ", style="green" if check.ok else "red", no_wrap=False)
                line.append(f"{check.name:<12} ", style="bold").append(one_line(check.finding, limit=400))
                print_event(terminal, line, _TEXT_COLUMN)
                if check.advice and not check.ok:
                    print_hint(terminal, f"{'':<{_TEXT_COLUMN}}{one_line(check.advice, limit=400)}", "yellow")
        return Code.OK if sound else Code.FAILED

    return asyncio.run(run())


def _resolve_team(target: str) -> Team | str:
    """The team that is defined there; or its name alone, unless that is a module that cannot be imported."""
    try:
        return load_team(target)
    except ConfigurationError as error:
        cause = error.__cause__
        absent = cause is None or (isinstance(cause, ModuleNotFoundError) and cause.name == target)
        if absent and re.fullmatch(TOKEN_PATTERN, target):
            return target
        raise


async def _run_checks(settings: Settings, team: Team | str | None) -> AsyncGenerator[Check, None]:
    yield _check_model(settings)
    yield await _check_telemetry()
    try:
        async with session(settings.url, settings.namespace) as client:
            yield await _check_broker(client, settings)
            yield await _check_streams(client, team, settings)
            yield await _check_retention(client, settings)
            for check in await _check_team(client, team):
                yield check
            alive = group_by_name(await client.operations.agents())
            yield await _check_cards(client)
            yield _check_schemas(alive)
            yield _check_definitions(group_by_name(await client.operations.teams()))
            yield _check_handlers(alive)
            yield await _check_ack_waits(client, alive)
            yield await _check_requests(client)
            yield await _check_tasks(client, team)
            yield await _check_circuits(client)
            yield await _check_dead_letters(client)
    except NotFoundError as error:
        advice = "a supervisor or a worker that starts makes it; --namespace or POINTSMAN_NAMESPACE names another"
        yield Check("namespace", False, str(error), advice)
    except PermissionDeniedError as error:
        yield Check("permissions", False, str(error), "docs/security.md describes the permissions")
    except ConfigurationError as error:
        yield Check("broker", False, str(error), "docs/settings.md lists the settings of connection and streams")
    except PointsmanError as error:
        yield Check("broker", False, str(error), "see that it runs and can be reached from here")


async def _check_broker(client: Client, settings: Settings) -> Check:
    """How long it takes to answer, seen from here. One long pause of either side does not make it slow."""
    clock, took = SystemClock(), list[float]()
    for _ in range(_LATENCY_SAMPLES):
        began = clock.monotonic()
        await client.bus.time()
        took.append(clock.monotonic() - began)
    seen = f"{settings.servers} answers in {format_seconds(min(took))}; streams of {settings.namespace!r} fit"
    if client.bus.domain:
        own = "" if settings.jetstream_domain else " of this server; POINTSMAN_JETSTREAM_DOMAIN names another"
        seen += f", in the JetStream domain {client.bus.domain!r}{own}"
    advice = "every step waits for several such answers: look at its node's disk and CPU, then at the network from here"
    return Check("broker", min(took) < _SLOW_BROKER_S, seen, advice)


async def _check_streams(client: Client, team: Team | str | None, settings: Settings) -> Check:
    losses = list(await find_lost_log(client.bus, client.subjects, SystemClock(), settings.retention_days))
    if team is not None:
        kept = settings.retention_days
        losses += await find_lost_work(client.bus, client.subjects, _team_name(team), SystemClock(), kept)
    if losses:
        advice = "messages were lost by a disk or a restore: see docs/durability.md"
        return Check("streams", False, "; ".join(losses), advice)
    if bounded := await stream_bounds(client.bus):
        edits = " and ".join(f"`nats stream edit {bound.partition(' ')[0]}`" for bound in bounded)
        advice = f"what was acknowledged is dropped, or work waits; take the bound off, with {edits}"
        return Check("streams", False, "; ".join(bounded), advice)
    return Check("streams", True, "the streams hold what they vouch for in each other")


async def _check_retention(client: Client, settings: Settings) -> Check:
    """Whether what is over is removed from the streams. What is owed to somebody keeps it, and all that came later."""
    told, long, now = list[str](), False, await client.bus.time()
    for stream in _RETAINED_STREAMS:
        kept, first = retention_of(stream, settings.retention_days), await oldest_message(client.bus, stream)
        age = now - first.at if first else timedelta(0)
        if first and age > kept + _RETENTION_TOLERANCE:
            told.append(f"{client.bus.stream_name(stream)} holds {first.subject} since {first.at:%Y-%m-%d}")
            long = long or age > 2 * kept
    advice = (
        "supervisors remove what is over, not what is owed: start its team's, or end it with `pointsman cancel`; what "
        "nobody will supervise again, `nats stream purge STREAM --subject SUBJECT` removes"
    )
    return Check("kept", not long, "; ".join(told) or "nothing for longer than it is needed", advice)


def _check_model(settings: Settings) -> Check:
    try:
        name = selected_model(settings.model)
    except ConfigurationError as error:
        return Check("model", False, str(error), "set POINTSMAN_MODEL to openai:NAME, anthropic:NAME or offline")
    key = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}.get(name.partition(":")[0])
    if key is not None and not variable(key):
        return Check("model", False, f"{name} is chosen and {key} is not set", f"set {key}, or POINTSMAN_MODEL=offline")
    told = f"{name} (no key is set: deterministic, no network)" if name == "offline" else f"{name}, {key} is set"
    return Check("model", True, told)


async def _check_telemetry() -> Check:
    endpoint = variable("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or variable("OTEL_EXPORTER_OTLP_ENDPOINT")
    if not endpoint:
        return Check("telemetry", True, "off; OTEL_EXPORTER_OTLP_ENDPOINT turns it on")
    try:
        parts = urlsplit(endpoint)
        host, port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:  # an address or a port that is none
        host, port = None, 0
    if host is None:
        return Check("telemetry", False, f"the endpoint is {endpoint!r}", "give a URL, such as http://127.0.0.1:4318")
    shown = f"{host}:{port}"
    try:
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError) as error:
        seen = f"nobody answers at {shown}: {error or 'no answer in time'}"
        advice = "start the collector, or unset OTEL_EXPORTER_OTLP_ENDPOINT: spans are lost, work is not"
        return Check("telemetry", False, seen, advice)
    writer.close()
    return Check("telemetry", True, f"{shown} accepts connections")


async def _check_dead_letters(client: Client) -> Check:
    count = len(await client.operations.dead_letters(limit=_MAX_COUNTED))
    shown = "none" if not count else f"{count}{' or more' if count == _MAX_COUNTED else ''}; `pointsman dead list`"
    if full := await client.bus.capacity_problem("dead"):
        shown += f"; {full}"
    advice = f"raise the bound, and what waits goes on: `nats stream edit {client.subjects.dead_letter_stream}`"
    return Check("dead letters", not full, shown, advice)


async def _check_supervisor(client: Client, team: str) -> Sequence[Check]:
    """Whether a supervisor of the team is there, and takes what waits."""
    durables = _team_consumers(team)
    before = [await client.bus.depth(durable, "work") for durable in durables]
    if any(depth and _depth_text(depth) for depth in before):
        await asyncio.sleep(_RECHECK_DELAY_S)
    alive = sum(card.name == team for card in await client.operations.teams())
    advice = f"start it: `pointsman supervisor module:name`, with the team {team}"
    checks = [Check("supervisor", alive > 0, f"{alive or 'none'} of {team} alive", advice)]
    for durable, first in zip(durables, before, strict=True):
        depth = await client.bus.depth(durable, "work") if first and _depth_text(first) else first
        if depth is None:  # no supervisor of the team ever was here
            continue
        seen = f"{durable}: {depth.pending} waiting, {depth.in_flight} in work"
        seen += ", and nobody takes them" if _depth_text(depth) else ""
        checks.append(Check("supervisor", not _depth_text(depth), seen, advice))
    return checks


def _team_consumers(team: str) -> tuple[str, str]:
    """The consumers of what a team is asked and told."""
    return f"request-{team}", f"inbox-{team}"


async def _check_requests(client: Client) -> Check:
    """Whether every request that waits has a supervisor it waits for, and has the time to. One whose end is asked for
    needs no other."""
    waits = [each for each in await client.queued_requests() if each.status == QUEUED_STATUS]
    waiting = Counter(each.team for each in waits)
    alone = set(waiting) - {card.name for card in await client.operations.teams()}
    known = await known_teams(client) if alone else set[str]()
    meant = {name: get_close_matches(name, known - {name}, 1) for name in alone - known}
    seen = "; ".join(
        f"{count} wait{'s' if count == 1 else ''} for {team}{', which has no supervisor' if team in alone else ''}"
        + "".join(f", did you mean {name}?" for name in meant.get(team, ()))
        for team, count in sorted(waiting.items())
    )
    advice = "start it: `pointsman supervisor MODULE`; or `pointsman cancel ID`, for each that `pointsman list` shows"
    return Check("requests", not alone, seen or "none waits for a supervisor", advice)


async def _check_tasks(client: Client, team: Team | str | None) -> Check:
    """Whether everybody is alive whom a task was handed to, of the workflows that run and were active last."""
    summaries = await client.list(_team_name(team) if team else None, limit=_MAX_WORKFLOWS)
    running = [each.id for each in summaries if each.status == "running"]
    logs, alive = await gather_batched(client.entries(each) for each in running), await client.operations.live_names()
    now = datetime.now(UTC)
    waiting = Counter(task.agent for log in logs for task in tasks_without_agent(at_time(build_trace(log), now, alive)))
    seen = "; ".join(
        f"{count} wait{'s' if count == 1 else ''} for an agent named {name}: none is alive"
        for name, count in sorted((str(name), count) for name, count in waiting.items())
    )
    advice = "start it: `pointsman worker module:name`; or `pointsman cancel ID`, for each that `pointsman list` shows"
    return Check("tasks", not waiting, seen or "none waits for an agent that is not alive", advice)


def _depth_text(depth: QueueDepth) -> bool:
    return depth.pending > 0 and depth.in_flight == 0


def _team_name(team: Team | str) -> str:
    return team if isinstance(team, str) else team.name


async def _check_team(client: Client, team: Team | str | None) -> Sequence[Check]:
    """Whether there is somebody for everything a workflow needs: of `team`, or of any team when none is named."""
    alive = group_by_name(await client.operations.agents())
    checks = [] if team is None else [*await _check_supervisor(client, _team_name(team))]
    if not isinstance(team, Team):
        count = sum(len(cards) for cards in alive.values())
        names = ", ".join(f"{name} ({cards[0].role.value})" for name, cards in alive.items())
        return [
            *checks,
            Check("agents", bool(alive), f"{count} alive: {names}" if alive else "none alive",
                  "`pointsman worker module:name` starts one; `pointsman up` starts a team"),
        ]  # fmt: skip
    shipped, teams = installed_agents(), group_by_name(await client.operations.teams())
    for name, why in team.required_agents().items():
        if name in teams:
            checks.append(Check("team", True, f"{name} ({why}): {len(teams[name])} alive"))
            continue
        found = alive.get(name, [])
        place = shipped[name].module if name in shipped else "module:name"
        advice = f"start it: `pointsman worker {place}`" + ("" if name in shipped else f", with the agent {name}")
        checks.append(Check("agent", bool(found), f"{name} ({why}): {len(found) or 'none'} alive", advice))
    everybody = team.agents == ANY
    used = alive if everybody else {name: cards for name, cards in {**alive, **teams}.items() if name in team.agents}
    for skill in team.required_skills():
        able = [name for name, cards in used.items() if any(skill in card.skills for card in cards)]
        advice = "start an agent that has it: `pointsman worker module:name`"
        checks.append(Check("skill", bool(able), f"{skill}: {', '.join(able) or 'nobody who has it is alive'}", advice))
    if everybody:
        workers = [name for name, cards in alive.items() if cards[0].role is Role.WORK]
        seen = f"workers alive: {', '.join(workers) or 'none'}"
        checks.append(Check("agents", bool(workers), seen, "start some: pointsman worker module:name"))
    return checks


async def _check_cards(client: Client) -> Check:
    """Check that the registry holds valid cards only."""
    refused = await client.operations.refused_cards()
    seen = "; ".join(f"{key}: {reason}" for key, reason in refused.items())
    advice = "their agents get no tasks: correct the cards, and announce them again"
    return Check("cards", not refused, seen or "every card in the registry is valid", advice)


def _check_schemas(alive: Mapping[str, Sequence[AgentCard]]) -> Check:
    """Whether the instances of each agent take and give the same: a task goes to whichever is free."""
    told = [f"{name}: {seen}" for name, cards in alive.items() if (seen := schema_difference(cards))]
    advice = "tasks go to either: let the old ones end, or call one of them by another name"
    return Check("schemas", not told, "; ".join(told) or "the instances of each agent take and give the same", advice)


def _check_definitions(teams: Mapping[str, Sequence[AgentCard]]) -> Check:
    """Whether the supervisors of each team have the same one: a request goes to whichever is free."""
    told = [f"{name}: {seen}" for name, cards in teams.items() if (seen := definition_difference(cards))]
    advice = "requests go to either: start all supervisors of a team with one definition, or call one by another name"
    return Check("definitions", not told, "; ".join(told) or "the supervisors of each team have the same", advice)


def _check_handlers(alive: Mapping[str, Sequence[AgentCard]]) -> Check:
    """Whether all that was told to stop has stopped: it takes memory and CPU until it ends by itself."""
    told = [f"{name}: {left}" for name, cards in alive.items() if (left := orphaned_handlers(cards))]
    advice = "let plain functions look at `context.cancelled`, and CancelledError pass; a worker's restart ends them"
    return Check("handlers", not told, "; ".join(told) or "all that was told to stop has stopped", advice)


async def _check_ack_waits(client: Client, alive: Mapping[str, Sequence[AgentCard]]) -> Check:
    """Whether all who share a queue have the same ack deadline: the longest counts, whatever the others are told."""
    teams = sorted({card.name for card in await client.operations.teams()})
    durables = [durable for name in teams for durable in _team_consumers(name)]
    depths = await gather_batched(client.bus.depth(durable, "work") for durable in durables)
    depths += await gather_batched(map(client.operations.queue_depth, alive))
    told = [
        f"{name} was asked for with {' and '.join(f'{wait:g}' for wait in depth.ack_waits)} s"
        for name, depth in zip([*durables, *alive], depths, strict=True)
        if depth and depth.ack_waits
    ]
    advice = "the longest counts; give all that share a queue the same POINTSMAN_ACK_WAIT, and start them anew"
    return Check("ack deadlines", not told, "; ".join(told) or "all who share a queue have the same", advice)


async def _check_circuits(client: Client) -> Check:
    """Whether everybody who is alive is sent work."""
    alive, now = await client.operations.live_names(), await client.bus.time()
    circuits = {name: each for name, each in sorted((await client.operations.circuits()).items()) if name in alive}
    seen = ", ".join(f"{name}: {circuit_state(each, now)}" for name, each in circuits.items())
    advice = "its errors: `pointsman dead list`; mend it, and the next task that it does well after that time ends this"
    return Check("circuits", not open_circuits(circuits, alive, now), seen or "every agent is sent work", advice)
