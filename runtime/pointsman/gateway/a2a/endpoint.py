"""Serve A2A. The SDK is loaded in a thread with the first request, because loading takes a second and 16 MB."""

from __future__ import annotations

import asyncio
from importlib.util import find_spec
from typing import TYPE_CHECKING

from starlette.routing import Mount
from starlette.types import ASGIApp, Receive, Scope, Send

from pointsman.gateway.a2a.push_store import PushStore
from pointsman.gateway.context import Context
from pointsman.gateway.problems import ProblemError
from pointsman.util.threads import run_in_thread

if TYPE_CHECKING:
    from pointsman.gateway.a2a.push_sender import PushSender

__all__ = ["a2a_mount", "has_a2a", "send_push_notifications"]


def has_a2a() -> bool:
    """Return True if the A2A SDK is installed."""
    return all(find_spec(name) is not None for name in ("a2a", "sse_starlette"))


def a2a_mount(context: Context, *, open: bool) -> Mount:
    """Return the routes of A2A, below `/a2a`.

    Args:
        context: The parts of the gateway.
        open: True if the gateway admits requests without a key.

    Returns:
        The mount.
    """
    return Mount("/a2a", app=_Endpoint(context, open=open))


async def send_push_notifications(context: Context) -> None:
    """Deliver the events of tasks to receivers of push notifications, until cancelled.

    Args:
        context: The parts of the gateway.
    """
    store = context.push
    if store is None:
        return

    def load() -> type[PushSender]:
        from pointsman.gateway.a2a.push_sender import PushSender

        return PushSender

    async with asyncio.TaskGroup() as group:
        group.create_task(store.run())
        while not store.known:  # wait for a first receiver, because most gateways have none and need no SDK
            store.changed.clear()
            await store.changed.wait()
        await (await run_in_thread(load))(context, store).run()


class _Endpoint:
    def __init__(self, context: Context, *, open: bool) -> None:
        self._context = context
        self._open = open
        self._app: ASGIApp | None = None
        self._loading = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._app is None:
            async with self._loading:
                if self._app is None:
                    self._app = await self._load()
        await self._app(scope, receive, send)

    async def _load(self) -> ASGIApp:
        push: PushStore | None = self._context.push
        if push is None:
            raise ProblemError(
                501,
                "a2a_not_installed",
                "this gateway has no A2A SDK; run pip install 'pointsman[a2a]' and restart the gateway",
            )

        def load() -> ASGIApp:
            from pointsman.gateway.a2a.routes import make_a2a_app

            return make_a2a_app(self._context, push, open=self._open)

        return await run_in_thread(load)
