"""Read the messages to a workflow on the loop of the bus, because agents may run on another event loop."""

from __future__ import annotations

import asyncio

from pointsman.engine.worker.executors import run_on_loop
from pointsman.errors import BusUnavailableError, ContractError
from pointsman.ports.bus import Bus
from pointsman.telemetry import get_logger
from pointsman_schemas.envelope import decode
from pointsman_schemas.events import Handoff, UserMessage, UserMessages
from pointsman_schemas.strict_json import parse
from pointsman_schemas.subjects import Subjects

__all__ = ["BusMessageReader"]

_log = get_logger(__name__)


class BusMessageReader:
    """`MessageReader` of a handoff. The bus is used on the loop that ran when this object was created.

    Args:
        bus: Connection to the bus.
        subjects: Subjects of the namespace.
        handoff: Handoff of the attempt.
    """

    def __init__(self, bus: Bus, subjects: Subjects, handoff: Handoff) -> None:
        self._bus = bus
        self._subject = subjects.agent_messages(handoff.to_agent, handoff.from_agent, handoff.workflow_id)
        self._loop = asyncio.get_running_loop()

    async def read(self) -> tuple[UserMessage, ...]:
        return await run_on_loop(self._loop, self._read())

    async def _read(self) -> tuple[UserMessage, ...]:
        try:
            stored = await self._bus.last("log", self._subject)
            return parse(UserMessages, decode(stored.headers, stored.body)[1]).messages if stored is not None else ()
        except (BusUnavailableError, ContractError) as error:  # the next read may succeed, and the work continues
            _log.warning("messages_unavailable", subject=self._subject, error=str(error))
            return ()
