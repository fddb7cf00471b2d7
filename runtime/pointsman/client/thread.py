"""Conversation of a caller with a team."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from pydantic import JsonValue

from pointsman.client.operations import Operations
from pointsman.client.workflow import Workflow
from pointsman_schemas.events import Outcome
from pointsman_schemas.ids import token
from pointsman_schemas.threads import Thread as ThreadState

__all__ = ["Thread"]


class Thread:
    """A thread of one caller with one team. `Client.thread` makes a thread.

    Attributes:
        team: The team.
        id: The id of the thread. Another process can continue the thread by this id.
        caller: The caller to whom the thread belongs.

    Args:
        submit: Function that publishes a turn. It is `Client.submit` with the team and the thread.
        operations: The operations of the client.
        team: The team.
        id: The id of the thread.
        caller: The caller.
    """

    def __init__(
        self, submit: Callable[..., Awaitable[Workflow]], operations: Operations, team: str, id: str, *, caller: str
    ) -> None:
        self.team = team
        self.id = token(id, "thread")
        self.caller = caller
        self._submit = submit
        self._operations = operations

    async def submit(self, input: str | Mapping[str, JsonValue], **options: Any) -> Workflow:
        """Publish the next turn, and return its workflow at once.

        Args:
            input: The request: a text or an object.
            **options: The options of `Client.submit`.

        Returns:
            The workflow of the turn.
        """
        return await self._submit(input, **options)

    async def ask(
        self, input: str | Mapping[str, JsonValue], *, timeout: float | None = None, **options: Any
    ) -> Outcome:
        """Publish the next turn, and wait for its outcome.

        Args:
            input: The request: a text or an object.
            timeout: The longest wait in seconds; None waits without a limit.
            **options: The options of `Client.submit`.

        Returns:
            The outcome of the turn.

        Raises:
            TimeoutError: the turn did not end in time. The turn continues.
        """
        workflow = await self.submit(input, **options)
        return await workflow.outcome(timeout)

    async def state(self) -> ThreadState | None:
        """Read the thread with its turns and the summary of older turns.

        Returns:
            The thread; None before its first turn.
        """
        return await self._operations.thread(self.team, self.id, caller=self.caller)

    async def delete(self, *, timeout: float = 30.0) -> int:
        """Delete the thread with all messages of its turns. See `Operations.delete_thread`.

        Args:
            timeout: The longest wait for the end of a running turn, in seconds.

        Returns:
            The number of turns whose messages were deleted.
        """
        return await self._operations.delete_thread(self.team, self.id, caller=self.caller, timeout=timeout)
