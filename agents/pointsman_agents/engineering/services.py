"""What is known of each service: a small seeded table of its code, its numbers and its configuration."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import BaseModel, Field

from pointsman_agents.samples import known

__all__ = ["Service", "ServiceName", "service"]


class Service(BaseModel):
    """`failing` are tests that fail, `changed` the last commits, `errors` a share of requests, times are in seconds.
    `configured` and `documented` are the values in use and those of the handbook."""

    tests: int
    failing: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    errors: float
    slowest: float
    configured: dict[str, float]
    documented: dict[str, float]


_KNOWN: Final = {
    "checkout": Service(
        tests=214,
        changed=("2026-11-12 receipts in French", "2026-11-19 a new button"),
        errors=0.11, slowest=2.0,
        configured={"payment_timeout": 2.0, "payment_retries": 2, "pool_size": 40},
        documented={"payment_timeout": 10.0, "payment_retries": 2, "pool_size": 40},
    ),
    "search": Service(
        tests=97,
        failing=("test_empty_query_returns_nothing",),
        changed=("2026-11-24 synonyms",),
        errors=0.04, slowest=0.3,
        configured={"cache_minutes": 15}, documented={"cache_minutes": 15},
    ),
}  # fmt: skip

ServiceName = Annotated[
    str, Field(description="The service", json_schema_extra={"enum": list(_KNOWN)}, examples=list(_KNOWN))
]


def service(name: str) -> Service:
    """Raises `NotFound` when nothing is known of it."""
    return known(_KNOWN, name.lower(), "service")
