"""Report the health of a gateway to load balancers, without a key."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response

from pointsman.gateway.context import ContextArg
from pointsman.gateway.models import Health

__all__ = ["router"]

router = APIRouter(tags=["health"])

_UNAVAILABLE: dict[int | str, dict[str, Any]] = {503: {"model": Health, "description": "Not ready."}}


@router.get("/healthz", summary="Check that the process runs")
async def read_health() -> Health:
    """Answer as long as the process serves requests."""
    return Health(status="ok")


@router.get("/readyz", summary="Check that requests can be served", responses=_UNAVAILABLE)
async def read_readiness(context: ContextArg, response: Response) -> Health:
    """Answer 200 if the broker is connected and the history of the log has been read."""
    if context.ready:
        return Health(status="ok")
    response.status_code = 503
    return Health(status="starting" if context.client.bus.connected else "broker_unavailable")
