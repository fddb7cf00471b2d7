"""The checks of `doctor` for webhooks. They expect a running service, no late delivery and no disabled endpoint."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from pointsman.cli.support.check import Check
from pointsman.client.client import Client
from pointsman.core.views.formatting import format_seconds
from pointsman.errors import PermissionDeniedError
from pointsman.webhooks.endpoint_store import EndpointStore
from pointsman.webhooks.observer import Observation, Observer

__all__ = ["check_webhooks"]

_LATE = timedelta(minutes=5)  # a delivery that waits longer is late; even if many wait, each waits only seconds
_MAX_SHOWN = 3  # largest number of disabled endpoints in one line


async def check_webhooks(client: Client) -> Sequence[Check]:
    """Check that a webhook service attempts deliveries in time, and that no endpoint is disabled.

    Endpoints that belong to callers are not checked.

    Args:
        client: The client.

    Returns:
        The results.
    """
    bus, subjects = client.bus, client.subjects
    try:
        seen = await Observer(bus, subjects, await EndpointStore.open(bus, subjects)).observe()
    except PermissionDeniedError:
        return [Check("webhooks", True, "not checked: this user may not read the endpoints")]
    if not seen.endpoints:
        return [Check("webhooks", True, "there is no endpoint")]
    checks = [_check_service(seen, await bus.time())]
    disabled = [each for each in seen.endpoints if each.disabled_at is not None and each.caller is None]
    if disabled:
        finding = "; ".join(
            f"{each.id} is disabled since {each.disabled_at:%Y-%m-%d %H:%M}: {each.disabled_reason}"
            for each in disabled[:_MAX_SHOWN]
        )
        more = f"; and {len(disabled) - _MAX_SHOWN} more" if len(disabled) > _MAX_SHOWN else ""
        advice = "`pointsman webhooks enable ID` sends its events again; `pointsman webhooks delete ID` deletes it"
        checks.append(Check("webhooks", False, finding + more, advice))
    return checks


def _check_service(seen: Observation, now: datetime) -> Check:
    service, number = seen.service, len(seen.endpoints)
    waiting = "1 delivery waits" if service.waiting == 1 else f"{service.waiting} deliveries wait"
    finding = f"{number} endpoint{'' if number == 1 else 's'}, {waiting}"
    if not service.running:
        return Check(
            "webhooks", False, f"{finding}, and no webhook service runs", "start a service: `pointsman webhooks run`"
        )
    late = now - (seen.oldest_due or now)
    if late > _LATE:
        advice = "start a further `pointsman webhooks run`, or raise POINTSMAN_WEBHOOK_CONCURRENCY"
        return Check(
            "webhooks", False, f"{finding}, the oldest attempt is {format_seconds(late.total_seconds())} late", advice
        )
    return Check("webhooks", True, finding)
