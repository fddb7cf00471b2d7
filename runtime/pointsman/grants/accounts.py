"""List the subjects that the two accounts of a tenant import from each other.

One account has the JetStream streams. Callers, workers and viewers are users of the other account, the edge account,
which imports the subjects that these users need. NATS has two kinds of imports. A service import sends requests to the
other account and returns the answers. The edge account has a service import for each subject on which its users may
publish. A stream import only receives messages of the other account, and has nothing to do with JetStream streams. The
edge account has a stream import for each subject to which its users may subscribe.

A service import also protects the account with the JetStream streams. The broker replaces the reply subject of each
request with a subject that leads back to the edge account. So no user of the edge account can direct an answer to
another subject. The subjects of the imports follow from the table of rights in `permissions`.
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
        services: The service imports of the edge account. Each is a pair: the subject in the account with the JetStream
            streams, and the subject in the edge account.
        streams: The stream imports of the edge account. In both accounts, the subject is the same.
        edge_services: The service imports of the account with the JetStream streams.
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
    # The users of the edge account publish on the kinds of subjects in `local`. The broker already delivers these
    # messages within the edge account, so a stream import would deliver a second copy.
    local = {_kind(each) for each in published} | {"_INBOX", "$SRV"}
    received = {each for each in subscribed if _kind(each) not in local and each.split(".")[0] not in local}
    return Exchange(tuple(sorted(services)), (*sorted(received), _INBOXES))


def has_many_answers(service: str) -> bool:
    """Return True if a request to a service can have several answers.

    The export of such a service must allow several answers. For each other service, the broker forgets the reply
    subject of a request after the first answer. So the reply subjects of a busy publisher take little memory of the
    broker.

    Args:
        service: The subject of the service.

    Returns:
        True for pull requests, reads in batches, and requests to all agents.
    """
    return ".CONSUMER.MSG.NEXT." in service or service.startswith("$SRV") or _BATCH.fullmatch(service) is not None


def is_covered(subject: str, patterns: Iterable[str]) -> bool:
    """Return True if at least one of the patterns covers a subject.

    A pattern covers a subject without wildcards if the pattern matches the subject. A pattern covers a subject with
    wildcards if this one pattern matches everything that the subject matches.

    Args:
        subject: A subject, with or without wildcards.
        patterns: The patterns.

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
    """Return the subjects that no other subject of the set covers."""
    return {each for each in subjects if not is_covered(each, subjects - {each})}
