"""Find agents whose queue has waiting handoffs from several teams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pointsman.client.client import Client
from pointsman.engine.log.reader import gather_batched
from pointsman_schemas.card import AgentCard

__all__ = ["describe_shared_queues"]


async def describe_shared_queues(client: Client, alive: Mapping[str, Sequence[AgentCard]]) -> list[str]:
    """Describe the queues with a backlog from at least two live teams. Only agents that belong to no team are checked.

    Args:
        client: The client.
        alive: The cards of the live agents, by name.

    Returns:
        One text for each such queue. A queue has a backlog if the number of waiting handoffs is at least the number of
        slots of all instances together.
    """
    shared = {name: cards for name, cards in alive.items() if cards[0].owner is None}
    depths = await gather_batched(map(client.operations.queue_depth, shared))
    teams = sorted({card.name for card in await client.operations.teams()})
    found: list[str] = []
    for (name, cards), depth in zip(shared.items(), depths, strict=True):
        if depth is None or depth.pending < sum(card.concurrency for card in cards):
            continue
        newest = await gather_batched(
            client.bus.last("handoffs", client.subjects.agent_handoffs(name, team)) for team in teams
        )
        using = [
            team
            for team, stored in zip(teams, newest, strict=True)
            if stored is not None and stored.sequence > depth.settled_through
        ]
        if len(using) > 1:
            found.append(f"{name}: {depth.pending} handoffs of {' and '.join(using)} wait in one queue")
    return found
