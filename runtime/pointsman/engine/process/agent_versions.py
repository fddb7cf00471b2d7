"""Compare the live instances of one agent or team. If two versions share a queue, each version receives tasks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from pointsman_schemas.card import AgentCard

__all__ = ["ROLLING_UPDATE", "group_by_name", "live_revisions", "mixed_queue", "mixed_since", "team_definitions"]

ROLLING_UPDATE = timedelta(minutes=10)
"""Time for which two versions of an agent may be live together without a remark. A deployment needs this time, because
it replaces one instance after the other."""


def group_by_name(cards: Iterable[AgentCard]) -> dict[str, list[AgentCard]]:
    """Group the cards of instances by the name of the agent or team.

    Args:
        cards: The cards.

    Returns:
        The cards of all instances by name, in the order of the cards.
    """
    grouped: dict[str, list[AgentCard]] = {}
    for card in cards:
        grouped.setdefault(card.name, []).append(card)
    return grouped


def live_revisions(cards: Iterable[AgentCard]) -> dict[str, int]:
    """Count the live instances of each revision of an agent.

    Args:
        cards: The cards of the instances of one agent.

    Returns:
        The number of instances by revision, in the order of the revisions.
    """
    counts: dict[str, int] = {}
    for revision in sorted(card.revision for card in cards):
        counts[revision] = counts.get(revision, 0) + 1
    return counts


def mixed_since(cards: Sequence[AgentCard]) -> datetime | None:
    """Return the time since which several revisions of an agent are live; None if all instances have one revision.

    Args:
        cards: The cards of the instances of one agent.

    Returns:
        The time at which the newest revision started its first instance.
    """
    first: dict[str, datetime] = {}
    for card in cards:
        if card.started_at is not None:
            first[card.revision] = min(card.started_at, first.get(card.revision, card.started_at))
    return max(first.values()) if len(first) > 1 else None


def mixed_queue(cards: Sequence[AgentCard], now: datetime) -> str:
    """Describe several versions of an agent that share a queue for longer than a rolling update takes.

    Versions with different schemas are described at once.

    Args:
        cards: The cards of the instances of one agent.
        now: The broker's time.

    Returns:
        The description; an empty text for a single version, or while a rolling update may run.
    """
    schemas: list[object] = []
    for card in cards:
        if card.input_output_schemas not in schemas:
            schemas.append(card.input_output_schemas)
    since = mixed_since(cards)
    if len(schemas) < 2 and (since is None or now - since <= ROLLING_UPDATE):
        return ""
    shown = ", ".join(f"{revision} ({count})" for revision, count in live_revisions(cards).items())
    what = f"{len(schemas)} versions with different schemas" if len(schemas) > 1 else "several versions"
    return f"{what} share one queue: {shown}"


def team_definitions(cards: Iterable[AgentCard]) -> dict[str, int]:
    """Count the live supervisors of each definition of a team.

    Args:
        cards: The cards of the supervisors of one team.

    Returns:
        The number of supervisors by the digest of the definition, in the order of the digests. Cards without a digest
        do not count.
    """
    unknown = AgentCard.model_fields["version"].default
    counts: dict[str, int] = {}
    for version in sorted(card.version for card in cards if card.version != unknown):
        counts[version] = counts.get(version, 0) + 1
    return counts
