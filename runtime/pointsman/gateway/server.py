"""Run a gateway: check the access rules, read the API keys, and serve until `stop` is set."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from pointsman.batches.service import open_batches
from pointsman.client.client import Client
from pointsman.errors import ConfigurationError
from pointsman.gateway.a2a.endpoint import has_a2a, send_push_notifications
from pointsman.gateway.a2a.push_store import PUSH_GROUP, PushStore
from pointsman.gateway.app import make_app
from pointsman.gateway.context import Context
from pointsman.gateway.keys import KeyCache
from pointsman.gateway.oidc import TokenVerifier
from pointsman.http.connections import ConnectionBounds
from pointsman.http.server import run_server
from pointsman.settings import Settings
from pointsman.telemetry import get_logger
from pointsman.util.network import is_loopback

__all__ = ["serve"]

_log = get_logger(__name__)

_SPARE_CONNECTIONS = 500  # number of idle connections, in addition to the connections with an open request


async def serve(
    client: Client,
    settings: Settings,
    *,
    hosts: Sequence[str],
    stop: asyncio.Event,
    ready: Callable[[str], None],
) -> None:
    """Serve the gateway until `stop` is set.

    Args:
        client: A connected client.
        settings: The settings.
        hosts: More host names that a request without a key may have in its header `Host`.
        stop: Set to end the server.
        ready: Called with the URL when the server listens.

    Raises:
        ConfigurationError: Other hosts could connect, but there is neither a key nor an issuer; or the port is not
            available.
    """
    verifier = TokenVerifier(settings) if settings.gateway_oidc_issuer else None
    keys = KeyCache(await client.bus.key_value(client.subjects.gateway_bucket))
    await keys.load()
    open_to_local = is_loopback(settings.gateway_host) and not settings.gateway_require_key
    if not open_to_local and not len(keys) and verifier is None:
        advice = "make a key with `pointsman gateway keys create CALLER`, or set POINTSMAN_GATEWAY_OIDC_ISSUER"
        if not settings.gateway_require_key:
            raise ConfigurationError(
                f"the gateway on {settings.gateway_host} demands keys and has no key; {advice}, or use 127.0.0.1"
            )
        _log.warning("gateway_without_keys", hint=f"each request is refused until there is a key; {advice}")
    push = PushStore(await client.bus.key_value(client.subjects.gateway_bucket, PUSH_GROUP)) if has_a2a() else None
    context = Context(client, settings, keys=keys, verifier=verifier, push=push)
    batches = await open_batches(client, context.index, settings)
    bounds = ConnectionBounds(connections=settings.gateway_max_requests + _SPARE_CONNECTIONS)
    await run_server(
        make_app(context, batches, hosts=hosts, open=open_to_local),
        name="gateway",
        host=settings.gateway_host,
        port=settings.gateway_port,
        stop=stop,
        ready=ready,
        on_stop=context.streams.stop,
        parts=(context.run, batches.run, partial(send_push_notifications, context)),
        bounds=bounds,
    )
