"""Take handoffs for agents of several teams that share slots. Each team with handoffs gets its share of the slots."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from pointsman.engine.worker.agent_slots import AgentSlots, SlotPool
from pointsman.errors import BusUnavailableError
from pointsman.ports.bus import Delivery

__all__ = ["FairPuller"]


class FairPuller:
    """Takes handoffs from the queues of agents that share a pool of slots.

    A free slot goes to the agent that was served longest ago, of the agents with a handoff. While no slot is free, this
    worker requests no handoff from the broker, so the broker delivers to workers with free slots. If two queues deliver
    at the same time, the second delivery waits in this worker for the next slot. A worker has at most one such delivery
    for each agent.

    Args:
        group: The slots of the agents, with their consumers. All agents have one pool.
    """

    def __init__(self, group: Sequence[AgentSlots]) -> None:
        self._turn = deque(group)  # the last element is the agent that was served last
        self._pool: SlotPool = group[0].pool
        self._takes: dict[str, asyncio.Task[Sequence[Delivery]]] = {}

    async def run(self, start: Callable[[AgentSlots, Delivery], None]) -> None:
        """Take handoffs until cancelled.

        Args:
            start: Called with each delivery. `start` must acquire a slot.

        Raises:
            BusUnavailableError: The broker does not serve a consumer any more. Call the method again.
            PermissionDeniedError: The broker refuses a consumer.
        """
        try:
            while True:
                await self._pool.slot_free.wait()
                if not any(each.waiting for each in self._turn):
                    await self._wait_for_delivery()
                self._collect()
                self._serve_next(start)
                if not self._pool.free:
                    await self._withdraw()
        finally:
            for take in self._takes.values():
                take.cancel()
            self._takes = {}

    async def _wait_for_delivery(self) -> None:
        for each in self._turn:  # in this order, because the broker answers the requests in the order of their arrival
            if each.name not in self._takes and each.consumer is not None:
                self._takes[each.name] = asyncio.create_task(each.consumer.take(1))
        await asyncio.wait(self._takes.values(), return_when=asyncio.FIRST_COMPLETED)

    def _collect(self) -> None:
        """Append each delivery that has arrived to `waiting` of its agent."""
        for each in self._turn:
            if (take := self._takes.get(each.name)) is not None and take.done():
                del self._takes[each.name]
                each.waiting.extend(take.result())

    def _serve_next(self, start: Callable[[AgentSlots, Delivery], None]) -> None:
        for each in self._turn:
            if each.waiting:
                start(each, each.waiting.popleft())
                self._turn.remove(each)
                self._turn.append(each)
                return

    async def _withdraw(self) -> None:
        """Withdraw the requests for handoffs. A delivery that is already on its way waits here for the next slot."""
        for take in self._takes.values():
            take.cancel()
        await asyncio.gather(*self._takes.values(), return_exceptions=True)
        takes, self._takes = self._takes, {}
        for each in self._turn:
            if (ended := takes.get(each.name)) is None or each.consumer is None:
                continue
            if ended.cancelled():
                with suppress(BusUnavailableError):
                    each.waiting.extend(await each.consumer.withdraw())
            elif ended.exception() is None:  # the next take raises the error again
                each.waiting.extend(ended.result())
