"""The command agents, which lists live agents and teams, their queues, and their problems."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from pointsman.cli.arguments import Json, check_seconds
from pointsman.cli.render.outcome import NARROW_WIDTH, set_no_wrap
from pointsman.cli.render.output import console, one_line, print_error, print_hint, print_json, print_table
from pointsman.cli.support.session import Session, broker_command
from pointsman.cli.support.teams import (
    circuit_state,
    definition_difference,
    orphaned_handlers,
    reported_problems,
)
from pointsman.client.client import Client
from pointsman.clock import SystemClock
from pointsman.engine.process.agent_versions import group_by_name, live_revisions, mixed_queue, team_definitions
from pointsman.errors import NotFoundError
from pointsman.ports.bus import QueueDepth
from pointsman_schemas.card import AgentCard

__all__ = ["agents"]

_WAIT_TIMEOUT_S = 60.0  # longest wait for agents; a slow import on a busy machine takes ten seconds
_POLL_INTERVAL_S = 0.1  # seconds between two checks for live agents
_COUNT_COLUMNS_WIDTH = 36  # characters for the columns `instances`, `waiting` and `running`, with their margins
_MIN_DESCRIPTION_WIDTH = 10  # in a column with fewer characters, the description is left out


@broker_command
async def agents(
    session: Session,
    wait: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Wait until this agent or team is live. May be repeated.", show_default=False
        ),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", help="With --wait: stop waiting after this many seconds.", callback=check_seconds
        ),
    ] = _WAIT_TIMEOUT_S,
    json: Json = False,
) -> None:
    """List the live agents and teams with their queues."""
    # With --wait, create a missing namespace. Otherwise the command would fail until the first agent has started.
    async with session(create=bool(wait)) as client:
        await _wait_for_agents(client, wait or (), timeout)
        grouped = group_by_name(await client.operations.agents())
        queues = await asyncio.gather(*(client.operations.queue_depth(name) for name in grouped))
        circuits, now = await client.operations.circuits(), await client.bus.time()
        teams = group_by_name(await client.operations.teams())
        requests = await asyncio.gather(*(client.bus.depth(f"request-{name}", "requests") for name in teams))
    if json:
        for (name, cards), queue in zip(grouped.items(), queues, strict=True):
            orphaned = sum(card.orphaned_handlers for card in cards)
            state = {
                "queue": queue,
                "circuit": circuits.get(name),
                "orphaned_handlers": orphaned,
                "revisions": live_revisions(cards),
                "mixed": mixed_queue(cards, now) or None,
                "problems": reported_problems(cards) or None,
            }
            print_json({"name": name, "instances": len(cards), **state, "card": cards[0]})
        for (name, cards), queue in zip(teams.items(), requests, strict=True):
            definitions = team_definitions(cards)
            state = {"supervisors": len(cards), "queue": queue, "definitions": definitions}
            print_json({"team": name, **state, "card": cards[0]})
        return
    terminal = console()
    if grouped:
        states = {name: circuit_state(circuit, now) for name, circuit in circuits.items()}
        print_table(terminal, _agent_table(grouped, queues, states, terminal.width, now))
    else:
        print("No agents are live. Start one with `pointsman worker module:name`, or a team with `pointsman up`.")
    notes: dict[str, list[str]] = {}
    for name, cards in grouped.items():
        if problem := reported_problems(cards):
            notes.setdefault(problem, []).append(name)
    for problem, names in notes.items():
        print_hint(terminal, f"{', '.join(names)}: {problem}", "yellow")
    if teams:
        print()
        print_table(terminal, _team_table(teams, requests))


async def _wait_for_agents(client: Client, names: Sequence[str], timeout: float) -> None:
    """Wait until each agent or team of `names` is live.

    Raises:
        NotFoundError: An agent or a team is not live after `timeout` seconds.
    """
    clock = SystemClock()
    began, noticed = clock.monotonic(), False
    while missing := ", ".join(sorted(set(names) - {card.name for card in await client.bus.registry.cards()})):
        if not noticed:
            print_error(f"waiting for {missing}")
            noticed = True
        if clock.monotonic() - began >= timeout:
            raise NotFoundError(
                f"{missing} not live after {timeout:g} s; start an agent with `pointsman worker module:name`, and read "
                "its log if it exits"
            )
        await asyncio.sleep(_POLL_INTERVAL_S)


def _agent_table(
    grouped: dict[str, list[AgentCard]],
    queues: Sequence[QueueDepth | None],
    states: Mapping[str, str],
    width: int,
    now: datetime,
) -> Table:
    """Render the agents. A narrow table has no role, version and model, and a very narrow table no description."""
    columns = ["agent", "role", "instances", "waiting", "running", "version", "model", "description"]
    if narrow := width < NARROW_WIDTH:
        columns = [column for column in columns if column not in ("role", "version", "model")]
        if width < max(map(len, grouped), default=0) + _COUNT_COLUMNS_WIDTH + _MIN_DESCRIPTION_WIDTH:
            columns.remove("description")
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for column in columns:
        table.add_column(column, no_wrap=narrow and column != "description")
    for (name, cards), queue in zip(grouped.items(), queues, strict=True):
        card = cards[0]
        slots = sum(each.concurrency for each in cards)
        waiting, running = (str(queue.pending), f"{queue.in_flight} of {slots}") if queue else ("?", "?")
        found = [
            states.get(name, ""),
            mixed_queue(cards, now),
            orphaned_handlers(cards),
        ]
        problems = "".join(f"{each}; " for each in found if each)
        cut = narrow or not problems  # in a wide table, problems are wrapped and not cut
        description = Text(problems, style="red", no_wrap=cut, overflow="ellipsis" if cut else "fold")
        description.append(one_line(card.description, limit=400 if cut else 80), style="default")
        cells = {
            "agent": name,
            "role": card.role.value,
            "instances": str(len(cards)),
            "waiting": waiting,
            "running": running,
            "version": Text("\n".join(live_revisions(cards))),
            "model": Text(one_line(card.model or "")),
            "description": description,
        }
        table.add_row(*(cells[column] for column in columns))
    if narrow:
        set_no_wrap(table, 0, 1, 2, 3)
    return table


def _team_table(teams: Mapping[str, Sequence[AgentCard]], requests: Sequence[QueueDepth | None]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for column in ("team", "supervisors", "waiting", "description"):
        table.add_column(column)
    for (name, cards), queue in zip(teams.items(), requests, strict=True):
        problem = f"{difference}; " if (difference := definition_difference(cards)) else ""
        description = Text(problem, style="red", no_wrap=True, overflow="ellipsis")
        description.append(one_line(cards[0].description, limit=400), style="default")
        table.add_row(name, str(len(cards)), str(queue.pending) if queue else "?", description)
    set_no_wrap(table, 0, 1, 2)
    return table
