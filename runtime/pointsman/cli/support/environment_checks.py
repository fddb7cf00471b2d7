"""The checks of `doctor` that need no namespace: the rights of the user, the model and the telemetry collector."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from urllib.parse import urlsplit

from pointsman.cli.support.check import Check
from pointsman.errors import ConfigurationError, ModelError
from pointsman.grants.permissions import GrantRole, permissions
from pointsman.llm.factory import check_model, selected_model
from pointsman.llm.prices import has_price
from pointsman.settings import Settings
from pointsman.util.environment import variable
from pointsman_schemas.team import Team

__all__ = ["READING_ROLES", "check_own_model", "check_rights", "check_telemetry"]

READING_ROLES = (GrantRole.SUPERVISOR, GrantRole.OPERATOR, GrantRole.DASHBOARD, GrantRole.OBSERVER)
"""The roles that may read all streams."""
_CONNECT_TIMEOUT_S = 2.0  # seconds to connect to the telemetry collector, which is usually in the same network


async def check_rights(
    settings: Settings, team: Team | str | None, role: GrantRole | None, agents: Sequence[str]
) -> tuple[GrantRole | None, Sequence[Check]]:
    """Check that the user has the rights of a role. If no role is given, check the role with the fewest missing rights.

    A role fits only if the user has more than half of its rights.

    Args:
        settings: The settings.
        team: The team of the process, or its name; None for no team.
        role: The role; None to check all roles.
        agents: The agents of a worker.

    Returns:
        The role, or None if no role fits. Also one result for each missing right, or one result if none is missing.
    """
    from pointsman.grants.probe import count_rights, grant_of, possible_grants, refused_rights

    teams = [(team if isinstance(team, str) else team.name)] if team else ["*"] if role in READING_ROLES else []
    if role is not None:
        chosen = grant_of(settings, role, teams=teams, agents=agents)
        refused = await refused_rights(settings, chosen)
    else:
        possible = possible_grants(settings, teams=teams, agents=agents)
        found = [(each, await refused_rights(settings, each)) for each in possible]
        # A right is also missing if the user has the role only for some teams. If the team is unknown, this case looks
        # the same as a wrong role. So a role that can be limited to teams then fits only if no right is missing.
        tried = [
            (grant, refused)
            for grant, refused in found
            if not refused
            or ((teams or not grant.teams) and 2 * len(refused) < count_rights(grant, settings.namespace))
        ]
        if not tried:
            advice = "name the role with --role, a team as TEAM, and the agents of a worker with --agent"
            return None, [Check("rights", False, "no role fits the user of this process", advice)]
        # If two roles have equally many missing rights, choose the role with more rights.
        chosen, refused = min(
            tried, key=lambda each: (len(each[1]), -len(permissions(each[0], settings.namespace).publish))
        )
    who = f"{chosen.name}, as {chosen.role}"
    if not refused:
        return chosen.role, [Check("rights", True, f"{who}, has every right of its role")]
    advice = "create the user again with `pointsman grants add`, or allow this subject in the broker's configuration"
    return chosen.role, [
        Check("rights", False, f"{who}, may not {operation} {subject}", advice) for operation, subject in refused
    ]


async def check_own_model(settings: Settings) -> Check:
    """Check the key, URL, proxy and CA file of the model in this command's environment. Nothing is sent.

    Args:
        settings: The settings.

    Returns:
        The result.
    """
    try:
        name = selected_model(settings.model)
    except ConfigurationError as error:
        return Check("model", False, str(error), "set POINTSMAN_MODEL to openai:NAME, anthropic:NAME or offline")
    if name == "offline":
        return Check("model", True, "offline (no API key is set): deterministic, without network")
    provider = name.partition(":")[0].removesuffix("-responses")
    key, url = f"{provider.upper()}_API_KEY", f"{provider.upper()}_BASE_URL"
    if not variable(key) and (provider == "anthropic" or not variable(url)):
        finding = f"the model is {name}, and {key} is not set"
        return Check("model", False, finding, f"set {key}, or POINTSMAN_MODEL=offline")
    try:
        await (await check_model(name)).close()
    except (ConfigurationError, ModelError) as error:
        return Check("model", False, str(error), f"correct the setting here and for each worker that uses {name}")
    is_priced = await has_price(provider, name.partition(":")[2])
    price = "" if is_priced else "; no price is known, so tasks with a cost limit do not call the model"
    return Check("model", True, f"{name}, {key if variable(key) else url} is set{price}")


async def check_telemetry() -> Check:
    """Check that the telemetry collector in this command's environment accepts connections.

    Returns:
        The result.
    """
    endpoint = variable("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or variable("OTEL_EXPORTER_OTLP_ENDPOINT")
    if not endpoint:
        return Check("telemetry", True, "off; OTEL_EXPORTER_OTLP_ENDPOINT turns it on")
    try:
        parts = urlsplit(endpoint)
        host, port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:  # the address or the port is not valid
        host, port = None, 0
    if host is None:
        return Check("telemetry", False, f"the endpoint is {endpoint!r}", "set a URL, such as http://127.0.0.1:4318")
    address = f"{host}:{port}"
    try:
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError) as error:
        finding = f"no collector answers at {address}: {error or f'no answer within {_CONNECT_TIMEOUT_S:g} s'}"
        advice = "start the collector, or unset OTEL_EXPORTER_OTLP_ENDPOINT; spans are lost, workflows are not affected"
        return Check("telemetry", False, finding, advice)
    writer.close()
    return Check("telemetry", True, f"{address} accepts connections")
