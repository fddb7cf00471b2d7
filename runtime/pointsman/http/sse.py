"""Format server-sent events."""

from __future__ import annotations

from typing import Any

from pydantic_core import to_json

__all__ = ["KEEPALIVE_COMMENT", "KEEPALIVE_INTERVAL_S", "format_event"]

KEEPALIVE_INTERVAL_S = (
    10.0  # seconds without an event after which a comment is sent; proxies close idle connections after 30 to 60 s
)
KEEPALIVE_COMMENT = b": keep-alive\n\n"
"""A comment. Clients ignore comments."""


def format_event(event: str, data: Any, *, id: int | str | None = None) -> bytes:
    """Format one event.

    Args:
        event: The type of the event; empty for no type.
        data: The data, which is sent as JSON.
        id: The position of the event. A client that reconnects sends the newest position in `Last-Event-ID`. Default:
            no position.

    Returns:
        The bytes to send.
    """
    head = f"id: {id}\n" if id is not None else ""
    head += f"event: {event}\n" if event else ""
    return f"{head}data: ".encode() + to_json(data) + b"\n\n"
