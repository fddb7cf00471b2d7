"""Show, replay and discard dead letters over HTTP, with the same calls as the command line."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response

from pointsman.client.client import Client
from pointsman.engine.operations.dead_letter_entry import DeadLetterEntry
from pointsman.engine.operations.dead_letter_replay import NotReplayableError
from pointsman.engine.operations.dead_letters import MAX_CONCURRENT_REPLAYS
from pointsman.errors import ContractError, NotFoundError
from pointsman.web import views
from pointsman.web.auth import client_of
from pointsman.web.projections.dead_letters import LetterIndex
from pointsman.web.responses import json_response, read_json_object

__all__ = ["LetterActions"]


class LetterActions:
    """The actions of the page of dead letters.

    Args:
        client: The client of the dashboard.
        letters: The index of the dead letters.
    """

    def __init__(self, client: Client, letters: LetterIndex) -> None:
        self._client = client
        self._letters = letters
        self._store = client.operations

    async def show(self, request: Request) -> Response:
        """Return one complete dead letter."""
        return json_response(views.dead_letter_json(await self._find_letter(request.path_params["id"])))

    async def replay(self, request: Request) -> Response:
        """Send the message of a dead letter again."""
        given = await read_json_object(request, ("as_new",))
        letter = await self._find_letter(request.path_params["id"])
        done = await client_of(request, self._client).operations.replay(letter, as_new=given.get("as_new") is True)
        return json_response(done)

    async def discard(self, request: Request) -> Response:
        """Delete a dead letter."""
        await read_json_object(request)
        letter = await self._find_letter(request.path_params["id"])
        gone = await client_of(request, self._client).operations.discard(letter)
        return json_response({"discarded": gone})

    async def replay_all(self, request: Request) -> Response:
        """Replay the letters that match a search."""
        return await self._apply_to_letters(request, client_of(request, self._client).operations.replay)

    async def discard_all(self, request: Request) -> Response:
        """Discard the letters that match a search."""
        return await self._apply_to_letters(request, client_of(request, self._client).operations.discard)

    async def _apply_to_letters(
        self, request: Request, act: Callable[[DeadLetterEntry], Awaitable[object]]
    ) -> Response:
        """Apply `act` to the letters that match the body's `text`, up to the sequence in the body's `until`."""
        given = await read_json_object(request, ("text", "until"))
        text, until = str(given.get("text", "")).casefold(), given.get("until")
        if not isinstance(until, int):
            raise ContractError(
                "the body has no number `until`; expected the sequence of the newest letter on the page"
            )
        chosen = self._letters.matching(text, until=until)
        done = 0
        for start in range(0, len(chosen), MAX_CONCURRENT_REPLAYS):
            some = chosen[start : start + MAX_CONCURRENT_REPLAYS]
            done += sum(await asyncio.gather(*(self._apply_to_letter(row.id, act) for row in some)))
        return json_response({"done": done, "of": len(chosen)})

    async def _apply_to_letter(self, name: str, act: Callable[[DeadLetterEntry], Awaitable[object]]) -> bool:
        try:
            await act(await self._find_letter(name))
        except (NotReplayableError, NotFoundError):
            return False
        return True

    async def _find_letter(self, name: str) -> DeadLetterEntry:
        try:
            return await self._store.dead_letter(name)
        except NotFoundError:
            self._letters.remove(name)
            raise
