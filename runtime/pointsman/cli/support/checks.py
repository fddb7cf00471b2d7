"""The checks of `pointsman doctor`. Each check compares the state of a namespace with its expected state."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches

from pointsman.cli.support.check import Check
from pointsman.cli.support.environment_checks import READING_ROLES, check_own_model, check_rights, check_telemetry
from pointsman.cli.support.session import session
from pointsman.cli.support.shared_queues import describe_shared_queues
from pointsman.cli.support.teams import (
    circuit_state,
    definition_difference,
    orphaned_handlers,
    reported_problems,
)
from pointsman.cli.support.webhook_checks import check_webhooks
from pointsman.client.client import QUEUED_STATUS, Client
from pointsman.client.known_teams import known_teams
from pointsman.clock import SystemClock
from pointsman.core.model.agent_health import open_circuits
from pointsman.core.views.formatting import format_seconds
from pointsman.core.views.trace import build_trace
from pointsman.core.views.trace_status import at_time, tasks_without_agent
from pointsman.engine.log.reader import gather_batched
from pointsman.engine.process.agent_versions import group_by_name, live_revisions, mixed_queue
from pointsman.engine.process.consumers import DurableConsumer, input_consumers, request_consumer
from pointsman.engine.process.discovery import installed_agents
from pointsman.engine.supervisor.retention import oldest_message, retention_of
from pointsman.engine.supervisor.stream_integrity import find_lost_log, find_lost_work, stream_bounds
from pointsman.errors import ConfigurationError, NotFoundError, PermissionDeniedError, PointsmanError
from pointsman.grants.permissions import GrantRole
from pointsman.llm.prices import has_price
from pointsman.ports.bus import QueueDepth, StreamKind
from pointsman.settings import Settings
from pointsman_schemas.card import AgentCard, Role
from pointsman_schemas.ids import is_token
from pointsman_schemas.team import ANY, Team

__all__ = ["check_requests", "check_retention", "check_supervisor", "check_tasks", "run_checks"]

_RECHECK_DELAY_S = 0.5  # seconds until waiting messages are counted again; a live supervisor takes them before
_MAX_SHOWN_SUBJECTS = 5  # largest number of subjects in one line
_MAX_COUNTED = 1_000  # largest number of dead letters that are counted; from this number on, doctor prints "or more"
_RETAINED_STREAMS: Sequence[StreamKind] = ("requests", "controls", "results", "work", "log")
_RETENTION_TOLERANCE = timedelta(days=1)
"""A message is reported only if its retention period ended more than this time ago, because supervisors delete old
messages only once an hour."""
_MAX_WORKFLOWS = 100  # largest number of workflows whose tasks are checked
_LATENCY_SAMPLES = 3  # number of measurements of the broker's latency
_SLOW_BROKER_S = 0.25  # latency in seconds from which a broker is slow; between continents, the latency is lower


async def run_checks(
    settings: Settings, team: Team | str | None, *, role: GrantRole | None = None, agents: Sequence[str] = ()
) -> AsyncGenerator[Check, None]:
    """Run the checks. If the role may not read all streams, check only its rights.

    Args:
        settings: The settings.
        team: The team whose processes are checked, or its name; None for no team.
        role: The role whose rights are checked. By default, if the inbox prefix belongs to a grant, this is the role
            with the fewest missing rights. Otherwise no rights are checked.
        agents: The agents that a worker runs, for the rights of a worker.

    Yields:
        The result of each check. If the broker cannot be used, the last result contains the reason.
    """
    connected = False
    try:
        if role is not None or settings.inbox_prefix.count("."):
            granted, missing = await check_rights(settings, team, role, agents)
            for check in missing:
                yield check
            if granted not in READING_ROLES:  # end here, because the other checks read all streams
                return
        async with session(settings.url, settings.namespace) as client:
            connected = True
            alive = group_by_name(await client.operations.agents())
            yield _check_live_models(alive) or await check_own_model(settings)
            yield await check_telemetry()
            yield await _check_broker(client, settings)
            yield await _check_streams(client, team, settings)
            yield await check_retention(client, settings)
            for check in await _check_team(client, team):
                yield check
            yield await _check_cards(client)
            yield _check_versions(alive, await client.bus.time())
            yield _check_definitions(group_by_name(await client.operations.teams()))
            yield _check_handlers(alive)
            yield await _check_prices(team, alive)
            yield await _check_ack_waits(client, alive)
            yield await check_requests(client)
            yield await check_tasks(client, team)
            yield await _check_shares(client, alive)
            yield await _check_circuits(client)
            yield await _check_dead_letters(client)
            for check in await check_webhooks(client):
                yield check
    except PointsmanError as error:
        if not connected:
            yield await check_own_model(settings)
            yield await check_telemetry()
        yield _check_of_error(error)


def _check_of_error(error: PointsmanError) -> Check:
    """Return the result for a broker or a namespace that cannot be used."""
    match error:
        case NotFoundError():
            advice = (
                "start a supervisor or a worker, which creates the namespace, or name another namespace with "
                "--namespace or POINTSMAN_NAMESPACE"
            )
            return Check("namespace", False, str(error), advice)
        case PermissionDeniedError():
            return Check("permissions", False, str(error), "docs/security.md describes the permissions")
        case ConfigurationError():
            advice = "docs/settings.md lists the settings of the connection and of streams"
            return Check("broker", False, str(error), advice)
        case _:
            return Check("broker", False, str(error), "start the broker, and check the network from this host to it")


async def _check_broker(client: Client, settings: Settings) -> Check:
    """Measure the latency of the broker several times. Use the smallest value, because one pause is not a problem."""
    clock, samples = SystemClock(), list[float]()
    for _ in range(_LATENCY_SAMPLES):
        began = clock.monotonic()
        await client.bus.time()
        samples.append(clock.monotonic() - began)
    latency = min(samples)
    finding = f"{settings.servers} answers in {format_seconds(latency)}; the streams of {settings.namespace!r} match"
    if client.bus.domain:
        own = (
            ""
            if settings.jetstream_domain
            else " of this server; POINTSMAN_JETSTREAM_DOMAIN selects a different domain"
        )
        finding += f", in the JetStream domain {client.bus.domain!r}{own}"
    advice = "each step of a workflow waits for several such answers: check the broker's disk, CPU and network"
    return Check("broker", latency < _SLOW_BROKER_S, finding, advice)


async def _check_streams(client: Client, team: Team | str | None, settings: Settings) -> Check:
    """Check that no stream has lost messages, and that no stream has a limit that would delete messages."""
    losses = list(await find_lost_log(client.bus, client.subjects, SystemClock(), settings.retention_days))
    if team is not None:
        name, days = _team_name(team), settings.retention_days
        losses += await find_lost_work(client.bus, client.subjects, name, SystemClock(), days)
    if losses:
        advice = "a disk or a restore has lost messages; read docs/durability.md"
        return Check("streams", False, "; ".join(losses), advice)
    if bounds := await stream_bounds(client.bus):
        edits = " and ".join(f"`nats stream edit {bound.partition(' ')[0]}`" for bound in bounds)
        advice = f"a full stream deletes messages or refuses new messages; remove the limit with {edits}"
        return Check("streams", False, "; ".join(bounds), advice)
    return Check("streams", True, "no message is missing, and no stream has a limit")


async def check_retention(client: Client, settings: Settings) -> Check:
    """Check that the streams contain no message that is older than twice its retention period.

    Retention deletes the messages of a stream in order, and keeps the messages of workflows that have not ended. So all
    messages after the first kept message usually stay, too.

    Args:
        client: The client.
        settings: The settings.

    Returns:
        The result. It names the oldest message of each stream if this message is older than its retention period.
    """
    kept, too_long, now = list[str](), False, await client.bus.time()
    for stream in _RETAINED_STREAMS:
        period, first = retention_of(stream, settings.retention_days), await oldest_message(client.bus, stream)
        age = now - first.at if first else timedelta(0)
        if first and age > period + _RETENTION_TOLERANCE:
            kept.append(f"{client.bus.stream_name(stream)} contains {first.subject} since {first.at:%Y-%m-%d}")
            too_long = too_long or age > 2 * period
    advice = (
        "a message of a workflow that has not ended stays in the stream: start the supervisor of its team, or end the "
        "workflow with `pointsman cancel`; if the team is gone, use `nats stream purge STREAM --subject SUBJECT`"
    )
    finding = "; ".join(kept) or "no message is kept longer than its retention period"
    return Check("retention", not too_long, finding, advice)


def _check_live_models(alive: Mapping[str, Sequence[AgentCard]]) -> Check | None:
    """Check the models that live workers have announced. Return None if no live agent has a model."""
    agents: dict[str, list[str]] = {}
    for name, cards in alive.items():
        for model in sorted({card.model for card in cards if card.model}):
            agents.setdefault(model, []).append(name)
    if not agents:
        return None
    used = "; ".join(f"{model} ({', '.join(names)})" for model, names in sorted(agents.items()))
    found = "; ".join(dict.fromkeys(problem for cards in alive.values() if (problem := reported_problems(cards))))
    return Check("model", True, f"live workers use {used}{f'; {found}' if found else ''}")


async def _check_dead_letters(client: Client) -> Check:
    count = len(await client.operations.dead_letters(limit=_MAX_COUNTED))
    finding = f"{count}{' or more' if count == _MAX_COUNTED else ''}; `pointsman dead list`" if count else "none"
    if full := await client.bus.capacity_problem("dead"):
        finding += f"; {full}"
    advice = f"raise the limit with `nats stream edit {client.subjects.dead_letter_stream}` to store refused letters"
    return Check("dead letters", not full, finding, advice)


async def check_supervisor(client: Client, team: str) -> Sequence[Check]:
    """Check that a supervisor of a team is live and receives the waiting messages.

    Args:
        client: The client.
        team: The name of the team.

    Returns:
        The results.
    """
    consumers = _team_consumers(client, team)
    before = [await client.bus.depth(consumer.name, consumer.stream) for consumer in consumers]
    if any(depth and _is_stalled(depth) for depth in before):
        await asyncio.sleep(_RECHECK_DELAY_S)
    alive = sum(card.name == team for card in await client.operations.teams())
    advice = f"start the supervisor of {team}: `pointsman supervisor module:name`"
    checks = [Check("supervisor", alive > 0, f"{team}: {alive or 'none'} live", advice)]
    for consumer, first in zip(consumers, before, strict=True):
        depth = await client.bus.depth(consumer.name, consumer.stream) if first and _is_stalled(first) else first
        if depth is None:  # no consumer to check, because no supervisor of the team has run in this namespace
            continue
        finding = f"{consumer.name}: {depth.pending} waiting, {depth.in_flight} running"
        finding += ", and no supervisor receives them" if _is_stalled(depth) else ""
        checks.append(Check("supervisor", not _is_stalled(depth), finding, advice))
    return checks


def _team_consumers(client: Client, team: str) -> tuple[DurableConsumer, ...]:
    """Return the consumers for a team's requests, controls, results and timers."""
    return request_consumer(client.subjects, team), *input_consumers(client.subjects, team)


async def check_requests(client: Client) -> Check:
    """Check that the team of each queued request has a live supervisor, and that each subject of requests names a team.

    Cancelled requests do not need a supervisor. The subjects are checked because the broker also stores messages on
    subjects with a literal wildcard, such as `pointsman.request.*.shop`. No team reads these messages.

    Args:
        client: The client.

    Returns:
        The result.
    """
    subjects = await client.bus.subjects("requests", client.subjects.requests)
    if lost := sorted(each for each in subjects if not is_token(each.split(".")[2])):
        return Check(
            "requests",
            False,
            f"no team reads the requests on {', '.join(lost[:_MAX_SHOWN_SUBJECTS])}",
            f"publish them on {client.subjects.request('TEAM', 'CALLER')}, with the names of a team and of a caller",
        )
    queued = [each for each in await client.queued_requests() if each.status == QUEUED_STATUS]
    counts = Counter(each.team for each in queued)
    unserved = set(counts) - {card.name for card in await client.operations.teams()}
    known = await known_teams(client) if unserved else set[str]()
    meant = {name: get_close_matches(name, known - {name}, 1) for name in unserved - known}
    finding = "; ".join(
        f"{count} wait{'s' if count == 1 else ''} for {team}{', which has no supervisor' if team in unserved else ''}"
        + "".join(f", did you mean {name}?" for name in meant.get(team, ()))
        for team, count in sorted(counts.items())
    )
    advice = (
        "start the supervisor with `pointsman supervisor MODULE`, or end each workflow that `pointsman list` shows "
        "with `pointsman cancel ID`"
    )
    return Check("requests", not unserved, finding or "no request waits for a supervisor", advice)


async def check_tasks(client: Client, team: Team | str | None) -> Check:
    """Check that no task waits for an agent that is not live. Only the most recently active workflows are checked.

    Args:
        client: The client.
        team: The team, or its name; None for all teams.

    Returns:
        The result.
    """
    summaries = await client.list(_team_name(team) if team else None, limit=_MAX_WORKFLOWS)
    running = [each.id for each in summaries if each.status == "running"]
    logs, alive = await gather_batched(client.entries(each) for each in running), await client.operations.live_names()
    now = datetime.now(UTC)
    waiting = Counter(task.agent for log in logs for task in tasks_without_agent(at_time(build_trace(log), now, alive)))
    finding = "; ".join(
        f"{count} wait{'s' if count == 1 else ''} for the agent {name}, which is not live"
        for name, count in sorted((str(name), count) for name, count in waiting.items())
    )
    advice = (
        "start the agent with `pointsman worker module:name`, or end each workflow that `pointsman list` shows with "
        "`pointsman cancel ID`"
    )
    return Check("tasks", not waiting, finding or "no task waits for an agent that is not live", advice)


def _is_stalled(depth: QueueDepth) -> bool:
    return depth.pending > 0 and depth.in_flight == 0


def _team_name(team: Team | str) -> str:
    return team if isinstance(team, str) else team.name


async def _check_team(client: Client, team: Team | str | None) -> Sequence[Check]:
    """Check that the agents of a team are live, and that a live agent has each skill that the team needs."""
    alive = group_by_name(await client.operations.agents())
    checks = [] if team is None else [*await check_supervisor(client, _team_name(team))]
    if not isinstance(team, Team):  # the definition of the team is unknown, so any live agent is enough
        count = sum(len(cards) for cards in alive.values())
        names = ", ".join(f"{name} ({cards[0].role.value})" for name, cards in alive.items())
        advice = "start an agent with `pointsman worker module:name`, or a team with `pointsman up`"
        return [*checks, Check("agents", bool(alive), f"{count} live: {names}" if alive else "none live", advice)]
    shipped, teams = installed_agents(), group_by_name(await client.operations.teams())
    for name, reason in team.required_agents().items():
        if name in teams:
            checks.append(Check("team", True, f"{name} ({reason}): {len(teams[name])} live"))
            continue
        found = alive.get(name, [])
        module = shipped[name].module if name in shipped else "module:name"
        advice = f"start it: `pointsman worker {module}`" + ("" if name in shipped else f", with the agent {name}")
        checks.append(Check("agent", bool(found), f"{name} ({reason}): {len(found) or 'none'} live", advice))
    any_agent = team.agents == ANY
    usable = alive if any_agent else {name: cards for name, cards in {**alive, **teams}.items() if name in team.agents}
    for skill in team.required_skills():
        able = [name for name, cards in usable.items() if any(skill in card.skills for card in cards)]
        finding = f"{skill}: {', '.join(able) or 'no live agent has this skill'}"
        advice = "start an agent with this skill: `pointsman worker module:name`"
        checks.append(Check("skill", bool(able), finding, advice))
    if any_agent:
        workers = [name for name, cards in alive.items() if cards[0].role is Role.WORK]
        finding = f"live agents for tasks: {', '.join(workers) or 'none'}"
        checks.append(Check("agents", bool(workers), finding, "start agents: `pointsman worker module:name`"))
    return checks


async def _check_cards(client: Client) -> Check:
    """Check that all cards in the registry are valid."""
    refused = await client.operations.refused_cards()
    finding = "; ".join(f"{key}: {reason}" for key, reason in refused.items())
    advice = "agents with invalid cards get no tasks: correct the cards, and announce the cards again"
    return Check("cards", not refused, finding or "every card in the registry is valid", advice)


def _check_versions(alive: Mapping[str, Sequence[AgentCard]], now: datetime) -> Check:
    """Check that the instances of an agent have the same schemas and, except during a rolling update, the same code."""
    found = [f"{name}: {mixed}" for name, cards in alive.items() if (mixed := mixed_queue(cards, now))]
    advice = (
        "tasks go to any instance: after an update, stop the old instances; if these are two agents, rename one "
        "agent, or run each agent for its team with `pointsman worker --team`"
    )
    updating = [
        f"{name} has {' and '.join(revisions)}"
        for name, cards in alive.items()
        if len(revisions := live_revisions(cards)) > 1
    ]
    fine = f"{'; '.join(updating)}, as in a rolling update" if updating else "the same for all instances of each agent"
    return Check("versions", not found, "; ".join(found) or fine, advice)


def _check_definitions(teams: Mapping[str, Sequence[AgentCard]]) -> Check:
    """Check that all supervisors of a team have the same definition, because any supervisor may get a request."""
    found = [f"{name}: {difference}" for name, cards in teams.items() if (difference := definition_difference(cards))]
    advice = "requests go to any supervisor: start all supervisors with one definition, or rename one of the teams"
    return Check("definitions", not found, "; ".join(found) or "the same for all supervisors of each team", advice)


async def _check_prices(team: Team | str | None, alive: Mapping[str, Sequence[AgentCard]]) -> Check:
    """Check that the prices of the live agents' models are known, because a team with a cost limit needs them."""
    models = {(card.model, name) for name, cards in alive.items() for card in cards if card.model}
    unknown = [
        f"{name}: {model}"
        for model, name in sorted(models)
        if not await has_price(model.partition(":")[0], model.partition(":")[2])
    ]
    finding = f"no price is known of {'; '.join(unknown)}" if unknown else "the price of each model is known"
    limit = team.limits.cost if isinstance(team, Team) else None
    if limit is None:
        return Check("prices", True, finding)
    advice = f"these agents cannot work within the cost limit of ${limit:g}: set PRICES, or limit tokens instead"
    return Check("prices", not unknown, finding, advice)


def _check_handlers(alive: Mapping[str, Sequence[AgentCard]]) -> Check:
    """Check that cancelled handlers have stopped, because a running handler uses memory and CPU."""
    found = [f"{name}: {orphaned}" for name, cards in alive.items() if (orphaned := orphaned_handlers(cards))]
    advice = (
        "check `context.cancelled` in plain functions, and do not catch CancelledError; a restart of the worker stops "
        "the handlers"
    )
    return Check("handlers", not found, "; ".join(found) or "no cancelled handler is still running", advice)


async def _check_ack_waits(client: Client, alive: Mapping[str, Sequence[AgentCard]]) -> Check:
    """Check that all processes of a queue have the same acknowledgement deadline. Otherwise the longest one applies."""
    teams = sorted({card.name for card in await client.operations.teams()})
    consumers = [consumer for name in teams for consumer in _team_consumers(client, name)]
    depths = await gather_batched(client.bus.depth(consumer.name, consumer.stream) for consumer in consumers)
    depths += await gather_batched(map(client.operations.queue_depth, alive))
    found = [
        f"{name} has {' and '.join(f'{wait:g}' for wait in depth.ack_waits)} s"
        for name, depth in zip([*(consumer.name for consumer in consumers), *alive], depths, strict=True)
        if depth and depth.ack_waits
    ]
    advice = "the longest deadline applies; start all processes that share a queue with the same POINTSMAN_ACK_WAIT"
    return Check("ack deadlines", not found, "; ".join(found) or "the same for all processes of a queue", advice)


async def _check_shares(client: Client, alive: Mapping[str, Sequence[AgentCard]]) -> Check:
    """Check that handoffs of several teams do not wait behind each other in the queue of an agent without a team."""
    found = await describe_shared_queues(client, alive)
    advice = (
        "the queue is first in, first out: for fair shares, list the agent in own_agents of each team, and start "
        "separate workers with --team for each team; or start more workers"
    )
    return Check("fair shares", not found, "; ".join(found) or "no team waits in a queue behind another", advice)


async def _check_circuits(client: Client) -> Check:
    """Check that no live agent has an open circuit."""
    alive, now = await client.operations.live_names(), await client.bus.time()
    circuits = {name: each for name, each in sorted((await client.operations.circuits()).items()) if name in alive}
    finding = ", ".join(f"{name}: {circuit_state(each, now)}" for name, each in circuits.items())
    advice = (
        "read the errors with `pointsman dead list` and fix the agent; the next task that succeeds closes the circuit"
    )
    return Check("circuits", not open_circuits(circuits, alive, now), finding or "all closed", advice)
