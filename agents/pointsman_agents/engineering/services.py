"""Define a small table of sample services: the tests, changes, metrics and configuration of each service."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import BaseModel, Field

from pointsman_agents.samples import look_up_entry

__all__ = ["Service", "ServiceName", "service"]


class Service(BaseModel):
    """One service.

    Attributes:
        tests: Number of tests.
        failing: Names of the tests that fail.
        changed: The last commits, each with its day.
        errors: Share of failed requests, from 0 to 1.
        slowest: Duration of the slowest answers, in seconds.
        configured: Settings in use.
        documented: Settings that the handbook requires.
    """

    tests: int
    failing: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    errors: float
    slowest: float
    configured: dict[str, float]
    documented: dict[str, float]


_SERVICES: Final = {
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
    str, Field(description="The service", json_schema_extra={"enum": list(_SERVICES)}, examples=list(_SERVICES))
]


def service(name: str) -> Service:
    """Return the service `name`. Raise `TaskError` if the table does not have this service."""
    return look_up_entry(_SERVICES, name.lower(), "service")
