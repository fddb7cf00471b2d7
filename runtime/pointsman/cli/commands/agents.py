"""The command agents: which agents and teams are alive, what waits for each, and what is wrong with it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime

from rich.table import Table
from rich.text import Text

from pointsman.cli.render.outcome import NARROW_WIDTH, set_no_wrap
from pointsman.cli.render.output import Code, console, one_line, print_error, print_json, print_table
from pointsman.cli.support.session import session
from pointsman.client.client import Client
from pointsman.clock import SystemClock
from pointsman.core.model.agent_health import Circuit
from pointsman.errors import NotFoundError
from pointsman.ports.bus import QueueDepth
from pointsman_schemas.card import AgentCard

__all__ = [
    "agents",
    "circuit_state",
    "definition_difference",
    "group_by_name",
    "orphaned_handlers",
    "schema_difference",
]

_UNKNOWN_VERSION = AgentCard.model_fields[
    "version"
].default  # a supervisor of an earlier release does not say what it has
_WAIT_NOTICE_AFTER_S = (
    60.0  # seconds until an agent that is waited for is late: a slow import on a busy machine takes ten
)
_POLL_INTERVAL_S = 0.1  # seconds between two looks at who is there
_COUNT_COLUMNS_WIDTH = 36  # columns of how many there are, what waits and what is in work, with their margins
_MIN_DESCRIPTION_WIDTH = 10  # columns below which a description says nothing


def agents(
    wait: Sequence[str] = (), timeout: float | None = None, *, url: str | None, namespace: str | None, json: bool
) -> Code:
    async def run() -> Code:
        # An agent that is waited for makes the namespace when it comes, so it need not be there yet.
        async with session(url, namespace, create=bool(wait)) as client:
            await _wait_for_agents(client, wait, timeout)
            grouped = group_by_name(await client.operations.agents())
            queues = await asyncio.gather(*(client.operations.queue_depth(name) for name in grouped))
            circuits, now = await client.operations.circuits(), await client.bus.time()
            teams = group_by_name(await client.operations.teams())
            requests = await asyncio.gather(*(client.bus.depth(f"request-{name}", "work") for name in teams))
        terminal = console()
        if json:
            for (name, cards), queue in zip(grouped.items(), queues, strict=True):
                circuit = circuits.get(name)
                left = sum(card.orphaned_handlers for card in cards)
                print_json({"name": name, "instances": len(cards), "queue": queue, "circuit": circuit,
                      "orphaned_handlers": left, "card": cards[0]})  # fmt: skip
            for (name, cards), queue in zip(teams.items(), requests, strict=True):
                print_json({"team": name, "supervisors": len(cards), "queue": queue, "card": cards[0]})
            return Code.OK
        if grouped:
            states = {name: circuit_state(circuit, now) for name, circuit in circuits.items()}
            print_table(terminal, _table(grouped, queues, states, terminal.width))
        else:
            print("No agents alive. `pointsman worker module:name` starts one; `pointsman up` starts a team.")
        if teams:
            print()
            print_table(terminal, _table_of_teams(teams, requests))
        return Code.OK

    return asyncio.run(run())


async def _wait_for_agents(client: Client, names: Sequence[str], patience: float | None = None) -> None:
    """Wait until each of `names` is there, telling of those that are not. A team counts: it is an agent, too."""
    clock = SystemClock()
    began, told, late = clock.monotonic(), False, _WAIT_NOTICE_AFTER_S if patience is None else patience
    while missing := ", ".join(sorted(set(names) - {card.name for card in await client.bus.registry.cards()})):
        if not told:
            print_error(f"waiting for {missing}")
            told = True
        if clock.monotonic() - began >= late:
            raise NotFoundError(
                f"{missing} did not come up within {late:g} s; `pointsman worker module:name` starts an agent, and "
                "its log says why it ends"
            )
        await asyncio.sleep(_POLL_INTERVAL_S)


def group_by_name(cards: Sequence[AgentCard]) -> dict[str, list[AgentCard]]:
    """The cards of all instances under the name of their agent, in the order they come."""
    grouped: dict[str, list[AgentCard]] = defaultdict(list)
    for card in cards:
        grouped[card.name].append(card)
    return dict(grouped)


def orphaned_handlers(cards: Sequence[AgentCard]) -> str:
    """How much was told to stop and has not, where there is any; else nothing."""
    left = sum(card.orphaned_handlers for card in cards)
    return f"{left} told to stop still run{'s' if left == 1 else ''}" if left else ""


def schema_difference(cards: Sequence[AgentCard]) -> str:
    """How many kinds of input and output agents of one name have, where that is more than one; else nothing."""
    different: list[object] = []
    for card in cards:
        if card.input_output_schemas not in different:
            different.append(card.input_output_schemas)
    return f"{len(different)} versions with different schemas" if len(different) > 1 else ""


def definition_difference(cards: Sequence[AgentCard]) -> str:
    """How many definitions the supervisors of one team have, where that is more than one; else nothing."""
    different = {card.version for card in cards} - {_UNKNOWN_VERSION}
    return f"{len(different)} different definitions" if len(different) > 1 else ""


def circuit_state(circuit: Circuit, now: datetime) -> str:
    """What is done with an agent that keeps failing."""
    if now >= circuit.until:
        return "kept failing, the next task is a probe"
    if circuit.probe:
        return "keeps failing, is being probed"
    return f"keeps failing, is sent no work before {circuit.until:%H:%M:%S} UTC"


def _table(
    grouped: dict[str, list[AgentCard]],
    queues: Sequence[QueueDepth | None],
    states: Mapping[str, str],
    width: int,
) -> Table:
    """Where there is room for few columns, the names and the numbers have it, and the rest is cut."""
    columns = ["agent", "role", "instances", "waiting", "in work", "model", "what it does"]
    if narrow := width < NARROW_WIDTH:
        columns = [column for column in columns if column not in ("role", "model")]
        if width < max(map(len, grouped), default=0) + _COUNT_COLUMNS_WIDTH + _MIN_DESCRIPTION_WIDTH:
            columns.remove("what it does")
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for column in columns:
        table.add_column(column, no_wrap=narrow and column != "what it does")
    for (name, cards), queue in zip(grouped.items(), queues, strict=True):
        card = cards[0]
        slots = sum(each.concurrency for each in cards)
        waiting, in_work = (str(queue.pending), f"{queue.in_flight} of {slots}") if queue else ("?", "?")
        wrong = [states.get(name, ""), schema_difference(cards), orphaned_handlers(cards)]
        told = "".join(f"{each}; " for each in wrong if each)
        cut = narrow or not told  # what is wrong is whole where there is room for it
        described = Text(told, style="red", no_wrap=cut, overflow="ellipsis" if cut else "fold")
        described.append(one_line(card.description, limit=400 if cut else 80), style="default")
        cells = {
            "agent": name,
            "role": card.role.value,
            "instances": str(len(cards)),
            "waiting": waiting,
            "in work": in_work,
            "model": Text(one_line(card.model or "")),
            "what it does": described,
        }
        table.add_row(*(cells[column] for column in columns))
    if narrow:
        set_no_wrap(table, 0, 1, 2, 3)
    return table


def _table_of_teams(teams: Mapping[str, Sequence[AgentCard]], requests: Sequence[QueueDepth | None]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for column in ("team", "supervisors", "waiting", "what it does"):
        table.add_column(column)
    for (name, cards), queue in zip(teams.items(), requests, strict=True):
        told = f"{differ}; " if (differ := definition_difference(cards)) else ""
        described = Text(told, style="red", no_wrap=True, overflow="ellipsis")
        described.append(one_line(cards[0].description, limit=400), style="default")
        table.add_row(name, str(len(cards)), str(queue.pending) if queue else "?", described)
    set_no_wrap(table, 0, 1, 2)
    return table
