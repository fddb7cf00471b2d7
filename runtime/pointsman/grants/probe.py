"""Find which rights of a role the broker refuses to the user of this process. Nothing is stored or changed."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pointsman.bus.jetstream.connection import NatsConnection
from pointsman.bus.jetstream.protocol import WireMessage, header_bytes
from pointsman.bus.jetstream.refusals import Refusal
from pointsman.errors import ConfigurationError, PermissionDeniedError
from pointsman.grants.permissions import Grant, GrantRole, inbox_prefix, permissions
from pointsman.settings import Settings

__all__ = ["RefusedRight", "count_rights", "grant_of", "possible_grants", "refused_rights"]

RefusedRight = tuple[str, str]
"""The operation, `publish on` or `subscribe to`, and the subject or pattern."""

_PROBE = "pointsman-probe"  # the token in place of a wildcard
# These headers make a probe harmless. A stream does not store a message whose expected stream has another name. The
# JetStream API refuses a request whose required API level is higher than the server's.
_HEADERS = {"Nats-Expected-Stream": _PROBE, "Nats-Required-Api-Level": "999999"}
_BODY = _PROBE.encode()
_SLOT = re.compile(r"(reader-.*)-\d+$")


def grant_of(
    settings: Settings, role: GrantRole, *, teams: Sequence[str], agents: Sequence[str], actions: Sequence[str] = ()
) -> Grant:
    """Return the grant that the broker user named in `settings` should have.

    Args:
        settings: The settings. The last token of the inbox prefix is the user.
        role: The role.
        teams: The teams, if the role has teams.
        agents: The agents, if the role has agents.
        actions: The actions.

    Returns:
        The grant.

    Raises:
        ConfigurationError: The inbox prefix does not belong to the role.
    """
    grant = Grant(role, settings.inbox_prefix.rpartition(".")[2], tuple(teams), tuple(agents), tuple(actions))
    if settings.inbox_prefix != (wanted := inbox_prefix(grant)):
        raise ConfigurationError(
            f"POINTSMAN_INBOX_PREFIX is {settings.inbox_prefix!r}; expected {wanted!r} for the role {role}; set the "
            f"variables in the file that `pointsman grants add` wrote"
        )
    return grant


async def refused_rights(settings: Settings, grant: Grant) -> list[RefusedRight]:
    """Try each right of a grant, and return the rights that the broker refuses.

    A try has no effect: no stream stores its message, and the JetStream API refuses its request.

    Args:
        settings: The settings of the connection.
        grant: The grant that the user should have.

    Returns:
        The refused rights.

    Raises:
        BusUnavailableError: No broker answers.
        ConfigurationError: The broker refuses the login.
    """
    rights = permissions(grant, settings.namespace)
    connection = NatsConnection(
        settings,
        "pointsman-doctor",
        on_lost=lambda: None,
        on_restored=lambda: None,
        on_no_responders=lambda subject: None,
    )
    refused = set[tuple[str, str]]()

    def on_refusal(refusal: Refusal, error: PermissionDeniedError) -> None:
        refused.add(("subscribe to" if refusal.operation == "subscribe" else "publish on", refusal.subject))

    with connection.optional_requests(""):  # a refusal is an expected result here, so log it as info
        await connection.open(settings.request_timeout)
        connection.refusal_listeners.add(on_refusal)
        try:
            block = header_bytes(_HEADERS)
            for subject in rights.publish:
                await connection.send(_probe(subject), _BODY, headers=block)
            for subject in rights.subscribe:
                await (await connection.subscribe(subject, _ignore)).unsubscribe()
            await connection.flush()
        finally:
            await connection.close()
    found = [("publish on", each) for each in rights.publish if ("publish on", _probe(each)) in refused]
    found += [("subscribe to", each) for each in rights.subscribe if ("subscribe to", each) in refused]
    return list(dict.fromkeys((operation, _without_slot(subject)) for operation, subject in found))


def count_rights(grant: Grant, namespace: str) -> int:
    """Count the rights that `refused_rights` tries for a grant."""
    rights = permissions(grant, namespace)
    named = {("publish on", _without_slot(each)) for each in rights.publish}
    return len(named | {("subscribe to", _without_slot(each)) for each in rights.subscribe})


def possible_grants(settings: Settings, *, teams: Sequence[str], agents: Sequence[str]) -> list[Grant]:
    """Return the possible grants of the broker user named in `settings`.

    There is one grant for each role that has the user's inbox prefix. A role that needs agents is omitted if no
    agents are given. A role that needs teams has all teams if no teams are given.

    Args:
        settings: The settings.
        teams: The teams, if they are known.
        agents: The agents, if they are known.

    Returns:
        The grants, without actions.
    """
    found = []
    for role in GrantRole:
        for chosen_teams, chosen_agents in ((teams, ()), ((), agents), ((), ()), (("*",), ())):
            try:
                found.append(grant_of(settings, role, teams=chosen_teams, agents=chosen_agents))
            except ConfigurationError:  # the role does not take these teams and agents, or has another inbox prefix
                continue
            break
    return found


def _probe(subject: str) -> str:
    return ".".join(_PROBE if token in ("*", ">") else token for token in subject.split("."))


def _ignore(message: WireMessage) -> None:
    """Do nothing."""


def _without_slot(subject: str) -> str:
    """Return a subject without the number in a reader's name. A user has the rights for all numbers or for none."""
    return ".".join(_SLOT.sub(r"\1-N", token) for token in subject.split("."))
