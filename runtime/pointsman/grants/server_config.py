"""Write the accounts and users of a nats-server configuration, from the table of rights."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pointsman.grants.accounts import Exchange, exchange, has_many_answers
from pointsman.grants.permissions import Grant, Permissions, permissions

__all__ = ["ConfigUser", "accounts_block", "edge_account", "jwt_exchange", "user_block"]

_RESPONSE_EXPIRY = "5s"  # time within which a worker may answer a request of the micro protocol


@dataclass(frozen=True, slots=True)
class ConfigUser:
    """A user of a server configuration.

    Attributes:
        grant: The grant.
        namespace: The namespace of the grant.
        password: The bcrypt hash of the password.
    """

    grant: Grant
    namespace: str
    password: str


def edge_account(account: str) -> str:
    """Return the name of the edge account that belongs to an account.

    Args:
        account: The name of the account with the streams.

    Returns:
        The name.
    """
    return f"{account}_EDGE"


def user_block(user: ConfigUser) -> str:
    """Return the entry of a user in the list `users` of an account.

    Args:
        user: The user.

    Returns:
        The lines of the entry.
    """
    rights = permissions(user.grant, user.namespace)
    name, password = json.dumps(user.grant.name), json.dumps(user.password)
    lines = [f"{{ user: {name}, password: {password}, permissions: {{"]
    lines += [f"  {line}" for line in permission_lines(rights)]
    return "\n".join([*lines, "} }"])


def permission_lines(rights: Permissions) -> Iterator[str]:
    """Yield the lines of a block `permissions`.

    Args:
        rights: The permissions.

    Yields:
        The lines.
    """
    for verb, subjects in (("publish", rights.publish), ("subscribe", rights.subscribe)):
        if not subjects:  # an empty list of allowed subjects would allow every subject, so deny every subject instead
            yield f'{verb}: {{ deny: ">" }}'
            continue
        yield f"{verb}: {{ allow: ["
        yield from (f"  {json.dumps(subject)}" for subject in subjects)
        yield "] }"
    if rights.responses:
        yield f"allow_responses: {{ max: 1, expires: {json.dumps(_RESPONSE_EXPIRY)} }}"


def accounts_block(account: str, users: Sequence[ConfigUser], *, namespaces: Iterable[str] = ()) -> str:
    """Return the two accounts of a tenant, with their users, imports and exports.

    Args:
        account: The name of the account with the streams.
        users: The users of both accounts.
        namespaces: The namespaces of the tenant. The namespaces of the users are added.

    Returns:
        Lines for the block `accounts` of a nats-server configuration.
    """
    edge = edge_account(account)
    subjects = exchange(sorted({user.namespace for user in users} | set(namespaces)))
    return "\n".join(
        [
            f"{account}: {{",
            "  jetstream: enabled",
            *_users(user for user in users if user.grant.trusted),
            *_indented(_exports(subjects)),
            *(["  imports: ["] + [f"    {_service(edge, each, each)}" for each in subjects.edge_services] + ["  ]"]),
            "}",
            f"{edge}: {{",
            *_users(user for user in users if not user.grant.trusted),
            *_indented(_edge(account, subjects)),
            "}",
            "",
        ]
    )


def _users(users: Iterable[ConfigUser]) -> Iterator[str]:
    yield "  users: ["
    for user in users:
        yield from (f"    {line}" for line in user_block(user).splitlines())
    yield "  ]"


def _exports(subjects: Exchange) -> Iterator[str]:
    yield "exports: ["
    yield from (
        f"  {{ service: {json.dumps(here)}{', response_type: stream' if has_many_answers(here) else ''} }}"
        for here, _ in subjects.services
    )
    yield from (f"  {{ stream: {json.dumps(each)} }}" for each in subjects.streams)
    yield "]"


def _edge(account: str, subjects: Exchange) -> Iterator[str]:
    yield "exports: ["
    yield from (f"  {{ service: {json.dumps(each)}, response_type: stream }}" for each in subjects.edge_services)
    yield "]"
    yield "imports: ["
    yield from (f"  {_service(account, here, there)}" for here, there in subjects.services)
    yield from (f"  {{ stream: {{ account: {account}, subject: {json.dumps(each)} }} }}" for each in subjects.streams)
    yield "]"


def _service(account: str, subject: str, local: str) -> str:
    to = f", to: {json.dumps(local)}" if local != subject else ""
    return f"{{ service: {{ account: {account}, subject: {json.dumps(subject)} }}{to} }}"


def _indented(lines: Iterable[str]) -> Iterator[str]:
    return (f"  {line}" for line in lines)


def jwt_exchange(
    subjects: Exchange, trusted: str, edge: str
) -> tuple[dict[bool, list[dict[str, object]]], dict[bool, list[dict[str, object]]]]:
    """Return the exports and imports of the two accounts, in the form of JWT claims.

    Args:
        subjects: The subjects that the accounts import from each other.
        trusted: The public key of the account with the streams.
        edge: The public key of the edge account.

    Returns:
        The exports and the imports, by account. The key is True for the account with the streams, False for the edge
        account.
    """

    def service(subject: str) -> dict[str, object]:
        several = {"response_type": "Stream"} if has_many_answers(subject) else {}
        return {"name": subject, "subject": subject, "type": "service", **several}

    def stream(subject: str) -> dict[str, object]:
        return {"name": subject, "subject": subject, "type": "stream"}

    def imported(kind: str, subject: str, account: str, local: str) -> dict[str, object]:
        renamed = {"local_subject": _references(local)} if local != subject else {}
        return {"name": subject, "subject": subject, "account": account, "type": kind, **renamed}

    exports = {
        True: [*(service(here) for here, _ in subjects.services), *map(stream, subjects.streams)],
        False: [service(each) for each in subjects.edge_services],
    }
    imports = {
        True: [imported("service", each, edge, each) for each in subjects.edge_services],
        False: [
            *(imported("service", here, trusted, there) for here, there in subjects.services),
            *(imported("stream", each, trusted, each) for each in subjects.streams),
        ],
    }
    return exports, imports


def _references(local: str) -> str:
    """Return a local subject with a reference such as `$1` in place of each `*`, in the form that a JWT needs."""
    number = 0
    tokens = []
    for token in local.split("."):
        if token == "*":
            number += 1
            token = f"${number}"
        tokens.append(token)
    return ".".join(tokens)
