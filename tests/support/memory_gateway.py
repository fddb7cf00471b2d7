"""A gateway on a memory bus without a socket, and callers with keys."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from starlette.types import ASGIApp

from pointsman.batches.service import Batches, open_batches
from pointsman.gateway.a2a.push_store import PUSH_GROUP, PushStore
from pointsman.gateway.app import make_app
from pointsman.gateway.context import Context
from pointsman.gateway.keys import KeyCache, KeyStore
from pointsman.index.callers import CallerLimits
from pointsman.settings import Settings
from support import factory
from support.asgi import Answer, request
from support.factory import ONE_TASK, RunningTeam, echo, planner_of, synthesizer
from support.waiting import until

__all__ = ["Door", "end_turn", "gateway"]


class Door(NamedTuple):
    """A gateway with the team `crew`, two keys of ada and a key of bob. One key of ada allows one running workflow."""

    app: ASGIApp
    context: Context
    batches: Batches
    client: RunningTeam
    keys: dict[str, str]

    async def send(self, key: str, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        return await request(self.app, method, path, body, authorization=f"Bearer {self.keys[key]}", **headers)


@asynccontextmanager
async def gateway(**settings: Any) -> AsyncIterator[Door]:
    async with factory.team(agents=[planner_of(ONE_TASK), echo("a"), synthesizer]) as client:
        chosen = Settings(namespace=client.subjects.namespace, **settings)
        store = await KeyStore.open(client.bus, client.subjects)
        made = {
            "ada": await store.create("ada", limits=CallerLimits(running=1)),
            "ada elsewhere": await store.create("ada", teams=["other"]),
            "bob": await store.create("bob"),
        }
        cache = KeyCache(await client.bus.key_value(client.subjects.gateway_bucket))
        await cache.load()
        push = PushStore(await client.bus.key_value(client.subjects.gateway_bucket, PUSH_GROUP))
        context = Context(client, chosen, keys=cache, push=push)
        batches = await open_batches(client, context.index, chosen)
        app = make_app(context, batches, open=False)
        running = asyncio.create_task(context.run())
        await context.index.current.wait()
        yield Door(app, context, batches, client, {name: each.text for name, each in made.items()})
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def end_turn(door: Door, **request: Any) -> str:
    """Run one turn of a thread of ada to its end, and return its workflow."""
    body = {"team": "crew", "input": "hi", "thread": "t", **request}
    workflow: str = (await door.send("ada", "POST", "/v1/workflows", body)).json["id"]
    await until(lambda: (row := door.context.index.find(workflow)) is not None and row.ended_at is not None)
    return workflow
