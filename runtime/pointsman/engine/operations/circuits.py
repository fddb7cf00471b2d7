"""Read the open circuits of a namespace from the bus."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import ValidationError

from pointsman.core.model.agent_health import Circuit, Circuits
from pointsman.ports.bus import Bus, StoredMessage
from pointsman_schemas.subjects import Subjects

__all__ = ["load_circuits", "read_circuits"]


async def load_circuits(bus: Bus, subjects: Subjects) -> Mapping[str, Circuit]:
    """Return the agents with an open or half-open circuit."""
    return read_circuits(await bus.last("limits", subjects.circuits)).agents


def read_circuits(stored: StoredMessage | None) -> Circuits:
    """Return the circuits in `stored`; no circuits without a message, or if another release wrote the message."""
    try:
        return Circuits.model_validate_json(stored.body) if stored else Circuits()
    except ValidationError:
        return Circuits()
