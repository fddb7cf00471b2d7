"""List the subjects that the two accounts of a tenant import: the account with the streams, and the edge account.

Callers, workers and viewers are in the edge account. For subjects on which these roles may publish, the edge account
imports services. For subjects to which these roles may subscribe, the edge account imports streams. In the account with
the streams, the broker replaces the reply subject of each request, so an answer can only go to the edge account. Both
lists are made from the table of rights.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from pointsman.grants.permissions import EDGE_DOMAIN, TRUSTED_ROLES, GrantRole, role_permissions

__all__ = ["Exchange", "exchange", "has_many_answers", "is_covered"]

_API, _EDGE_API = "$JS.API.", f"$JS.{EDGE_DOMAIN}.API."
_BATCH = re.compile(r"\$JS\.API\.DIRECT\.GET\.[^.]+")  # a direct get without a subject asks for a batch
_INBOXES = "_INBOX.>"
_SERVICES = "$SRV.>"  # the subjects of the NATS micro protocol; agents describe themselves on these subjects


@dataclass(frozen=True, slots=True)
class Exchange:
    """The subjects that the two accounts import from each other.

    Attributes:
        services: Services of the account with the streams, each with the subject in the edge account.
        streams: Subjects of the account with the streams that users of the edge account may receive.
        edge_services: Services of the edge account that the account with the streams imports.
    """

    services: tuple[tuple[str, str], ...]
    streams: tuple[str, ...]
    edge_services: tuple[str, ...] = (_SERVICES,)


def exchange(namespaces: Iterable[str]) -> Exchange:
    """Return the subjects that the accounts of a tenant import from each other.

    Args:
        namespaces: The namespaces of the tenant.

    Returns:
        The subjects.
    """
    published, subscribed = set[str](), set[str]()
    for namespace in namespaces:
        for role in GrantRole:
            if role not in TRUSTED_ROLES:
                rights = role_permissions(role, namespace)
                published |= set(rights.publish)
                subscribed |= set(rights.subscribe)
    published, subscribed = _widest(published), _widest(subscribed)
    services = [
        (_API + each.removeprefix(_EDGE_API) if each.startswith(_EDGE_API) else each, each) for each in published
    ]
    # Messages of edge users are already delivered within the edge account, so an import would deliver a second copy.
    local = {_kind(each) for each in published} | {"_INBOX", "$SRV"}
    received = {each for each in subscribed if _kind(each) not in local and each.split(".")[0] not in local}
    return Exchange(tuple(sorted(services)), (*sorted(received), _INBOXES))


def has_many_answers(service: str) -> bool:
    """Return True if a request to a service may have several answers.

    The export of such a service must allow several answers. For other services, the broker forgets the reply subject of
    a request after the first answer, so a busy publisher costs the broker little memory.

    Args:
        service: The subject of the service.

    Returns:
        True for pull requests, reads in batches, and requests to all agents.
    """
    return ".CONSUMER.MSG.NEXT." in service or service.startswith("$SRV") or _BATCH.fullmatch(service) is not None


def is_covered(subject: str, patterns: Iterable[str]) -> bool:
    """Return True if one of the patterns matches each subject that the given subject or pattern matches.

    Args:
        subject: A subject, or a pattern with wildcards.
        patterns: Patterns with wildcards.

    Returns:
        True if a pattern covers the subject.
    """
    return any(_covers(pattern.split("."), subject.split(".")) for pattern in patterns)


def _covers(pattern: list[str], subject: list[str]) -> bool:
    for place, token in enumerate(pattern):
        if token == ">":
            return len(subject) > place
        if place >= len(subject) or subject[place] == ">":
            return False
        if token not in ("*", subject[place]):
            return False
    return len(pattern) == len(subject)


def _kind(subject: str) -> str:
    """Return the namespace and the kind of a subject."""
    return ".".join(subject.split(".")[:2])


def _widest(subjects: set[str]) -> set[str]:
    """Return the subjects that no other subject covers."""
    return {each for each in subjects if not is_covered(each, subjects - {each})}
