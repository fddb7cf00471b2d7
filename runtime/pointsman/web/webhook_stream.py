"""Stream two lists to the webhooks page of the dashboard: the webhook endpoints and the deliveries."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from starlette.requests import Request

from pointsman.client.client import Client
from pointsman.errors import PermissionDeniedError
from pointsman.http.sse import KEEPALIVE_INTERVAL_S, format_event
from pointsman.web.auth import user_of
from pointsman.web.projections.deliveries import DeliveryIndex
from pointsman.web.responses import parse_number
from pointsman.web.sse import Chunks, Polled
from pointsman.webhooks.endpoint_store import EndpointStore
from pointsman.webhooks.endpoints import Endpoint
from pointsman.webhooks.observer import read_service

__all__ = ["WebhookStream"]

_POLL_INTERVAL_S = 2.0  # seconds between two polls of the endpoints while a page is open
_BATCH_INTERVAL_S = 0.2  # seconds in which changes are gathered before they are sent
_PAGE_SIZE = 100  # number of deliveries of a page
_MAX_SEARCH_CHARS = 200


class _Present(NamedTuple):
    endpoints: Sequence[Endpoint]
    running: bool = False
    waiting: int = 0
    denied: str = ""


class WebhookStream:
    """The event stream of the webhooks page.

    Args:
        client: The client of the dashboard.
        deliveries: The deliveries.
        status: Function that returns the data that all pages have.
    """

    def __init__(
        self, client: Client, deliveries: DeliveryIndex, status: Callable[[], Awaitable[dict[str, Any]]]
    ) -> None:
        self._client = client
        self._deliveries = deliveries
        self._status = status
        self._present: Polled[_Present] = Polled(self._read, _POLL_INTERVAL_S)

    def refresh(self) -> None:
        """Read the endpoints now, after an action."""
        self._present.refresh()

    async def chunks(self, request: Request) -> Chunks:
        """Yield the endpoints and the requested page of the deliveries, and again after each change.

        Args:
            request: The request. Its query has `text`, `endpoint`, `status` and `offset`.

        Yields:
            Server-sent events.
        """
        user, asked = user_of(request.scope), request.query_params
        # Only operators get the path of a URL, because the path may be a secret of the receiver.
        whole = user is None or user.role == "operate"
        text = asked.get("text", "")[:_MAX_SEARCH_CHARS].casefold()
        endpoint, status = asked.get("endpoint", ""), asked.get("status", "")
        async with self._present.watch():
            await self._wait(self._deliveries.changes, None)
            while True:
                changes, seen = self._deliveries.changes, self._present.value
                rows, count = self._deliveries.page(
                    text, endpoint=endpoint, status=status, offset=parse_number(asked.get("offset", "")),
                    limit=_PAGE_SIZE,
                )  # fmt: skip
                counts = self._deliveries.counts()
                content = {
                    "endpoints": [
                        {**_row(each, whole=whole), "counts": counts.get(each.id, {})}
                        for each in (seen.endpoints if seen else ())
                    ],
                    "running": seen is not None and seen.running,
                    "waiting": seen.waiting if seen else 0,
                    "denied": seen.denied if seen else "",
                    "deliveries": rows,
                    "count": count,
                    "size": _PAGE_SIZE,
                }
                yield format_event("webhooks", {**content, **await self._status()})
                while self._deliveries.changes == changes and self._present.value == seen:
                    await self._wait(changes, seen)
                    if self._deliveries.changes == changes and self._present.value == seen:
                        yield format_event("status", await self._status())
                await asyncio.sleep(_BATCH_INTERVAL_S)

    async def _wait(self, changes: int, seen: _Present | None) -> None:
        """Return after a change, or after `KEEPALIVE_INTERVAL_S`."""
        news = [
            asyncio.ensure_future(self._deliveries.wait_for_change(changes)),
            asyncio.ensure_future(self._present.wait_for_change(seen)),
        ]
        try:
            await asyncio.wait(news, timeout=KEEPALIVE_INTERVAL_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in news:
                each.cancel()

    async def _read(self) -> _Present:
        bus, subjects = self._client.bus, self._client.subjects
        try:
            endpoints = await (await EndpointStore.open(bus, subjects)).list()
        except PermissionDeniedError as error:
            return _Present((), denied=str(error))
        service = await read_service(bus, subjects)
        return _Present(endpoints, service.running, service.waiting)


def _row(endpoint: Endpoint, *, whole: bool) -> dict[str, Any]:
    shown = endpoint.model_dump(mode="json", exclude={"secrets"})
    if not whole:
        parts = urlsplit(endpoint.url)
        shown["url"] = f"{parts.scheme}://{parts.netloc}/…"
    return {**shown, "rotated_at": endpoint.secrets[0].created_at if len(endpoint.secrets) > 1 else None}
