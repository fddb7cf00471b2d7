"""Record the facts that a decision uses in addition to the state and the inputs, so that a replay can repeat it.

The descriptions, examples and schemas of cards are not recorded, because no decision depends on them. But a decision
copies some of these texts into the input of a planner, a classifier or a refiner. To repeat this, a replay reads the
texts from the recorded input.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from pydantic import JsonValue

from pointsman.core.decision import Decision, DecisionContext
from pointsman.core.model.agent_health import Circuit, Load
from pointsman_schemas.card import AgentCard
from pointsman_schemas.claim_check import MAX_BODY_BYTES
from pointsman_schemas.log import AgentLoad, Entry, OpenCircuit, RecordedContext, TaskAdded

__all__ = ["AgentCards", "record_context", "restore_context", "summarize_cards"]

AgentCards = tuple[dict[str, JsonValue], ...]

_PROSE_FIELDS = frozenset({"description", "intents", "examples", "input_schema"})
_RECORDED_FIELDS = frozenset(AgentCard.model_fields) - _PROSE_FIELDS - {
    "output_schema", "version", "model", "max_in_flight", "instance", "started_at", "digest", "problems",
}  # fmt: skip
_IDENTITY_FIELDS = sorted(_RECORDED_FIELDS - {"concurrency"})
_NO_FACTS = RecordedContext()


def summarize_cards(cards: Iterable[AgentCard]) -> AgentCards:
    """Return the recorded form of `cards`.

    Instances whose recorded fields are equal, except for their slots, become one card with the sum of the slots.
    """
    found: dict[tuple[object, ...], dict[str, JsonValue]] = {}
    hands: dict[tuple[object, ...], int] = {}
    for card in cards:
        key = tuple(getattr(card, name) for name in _IDENTITY_FIELDS)
        hands[key] = hands.get(key, 0) + card.concurrency
        if key not in found:
            found[key] = card.model_dump(mode="json", include=set(_RECORDED_FIELDS), exclude_defaults=True)
    return tuple({**found[key], "concurrency": min(count, 10_000)} for key, count in hands.items())


def record_context(decision: Decision, agents: AgentCards | None) -> RecordedContext:
    """Return the facts on which `decision` depends.

    Args:
        decision: The decision.
        agents: The live agents; None if they are equal to the newest list of agents in the log.
    """
    context = decision.context
    used = context.circuits or decision.loads_consulted or decision.fired_timers
    if agents is None and not used and context.max_body == MAX_BODY_BYTES:
        return _NO_FACTS  # the usual case
    circuits = {name: OpenCircuit(until=each.until, probe=each.probe) for name, each in context.circuits.items()}
    known = {name: context.loads.get(name, Load()) for name in sorted(decision.loads_consulted)}
    return RecordedContext(
        agents=agents,
        circuits=circuits or None,
        loads={name: AgentLoad(queued=load.queued, seconds=load.seconds) for name, load in known.items()} or None,
        max_body=context.max_body if context.max_body != MAX_BODY_BYTES else None,
        fired_timers=tuple(sorted(decision.fired_timers)) or None,
    )


def restore_context(
    given: RecordedContext, agents: AgentCards, entries: Iterable[Entry], at: datetime
) -> DecisionContext:
    """Return the decision context of recorded entries.

    Args:
        given: The recorded facts.
        agents: The live agents, from the newest list of agents in the log.
        entries: The entries of the decision.
        at: The time of the decision.

    Returns:
        The context.
    """
    prose = _recorded_prose(entries)
    return DecisionContext(
        at,
        tuple(AgentCard.model_validate({"description": "", **each, **prose.get(each["name"], {})}) for each in agents),
        {name: Circuit(since=at, until=each.until, probe=each.probe) for name, each in (given.circuits or {}).items()},
        MAX_BODY_BYTES if given.max_body is None else given.max_body,
        {name: Load(each.queued, each.seconds) for name, each in (given.loads or {}).items()},
    )


def _recorded_prose(entries: Iterable[Entry]) -> Mapping[JsonValue, dict[str, JsonValue]]:
    """Return the texts about each agent that the inputs of planners, classifiers and refiners contain, by agent."""
    found: dict[JsonValue, dict[str, JsonValue]] = {}
    for entry in entries:
        if isinstance(entry, TaskAdded) and isinstance(entry.input, dict):
            menu = entry.input.get("agents")
            for item in menu if isinstance(menu, list) else ():
                if isinstance(item, dict):
                    found[item["name"]] = {name: value for name, value in item.items() if name in _PROSE_FIELDS}
            if said := entry.input.get("agent_description"):
                found[entry.input["agent"]] = {"description": said}
    return found
