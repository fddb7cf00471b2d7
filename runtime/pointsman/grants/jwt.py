"""Make and read the JWTs of NATS for operators, accounts, users and the answers of an auth callout.

A JWT of NATS is signed with the Ed25519 key of the issuer. The issuer of a user is an account or a signing key of the
account. With a scoped signing key, the JWT of the account contains the permissions of all users of the key. So the JWT
of such a user is short and cannot add permissions.
"""

from __future__ import annotations

import json
import time
from base64 import b32encode, urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from pointsman.errors import ConfigurationError
from pointsman.grants.permissions import Permissions
from pointsman.util.nkeys import NKey, verify

__all__ = [
    "account_jwt",
    "authorization_response",
    "credentials_text",
    "operator_jwt",
    "permission_claims",
    "read_jwt",
    "scope",
    "user_jwt",
]

_HEADER = {"typ": "JWT", "alg": "ed25519-nkey"}
_UNLIMITED = -1
_RESPONSE_TTL_NS = 5_000_000_000  # nanoseconds in which a worker may answer a request of the micro protocol
_USER_LIMITS = {"subs": _UNLIMITED, "data": _UNLIMITED, "payload": _UNLIMITED}
_ACCOUNT_LIMITS = {
    **_USER_LIMITS,
    "imports": _UNLIMITED,
    "exports": _UNLIMITED,
    "wildcards": True,
    "conn": _UNLIMITED,
    "leaf": _UNLIMITED,
}
_JETSTREAM_LIMITS = {
    "mem_storage": _UNLIMITED,
    "disk_storage": _UNLIMITED,
    "streams": _UNLIMITED,
    "consumer": _UNLIMITED,
}


def operator_jwt(key: NKey, name: str, *, system_account: str, signing_keys: Sequence[str] = ()) -> str:
    """Make the JWT of an operator, signed with the operator's own key.

    Args:
        key: The key of the operator.
        name: The name of the operator.
        system_account: The public key of the system account.
        signing_keys: The public keys that may sign accounts, besides `key`.

    Returns:
        The JWT.
    """
    claims: dict[str, Any] = {"system_account": system_account}
    if signing_keys:
        claims["signing_keys"] = list(signing_keys)
    return _sign(key, "operator", name, key.public, claims)


def account_jwt(
    issuer: NKey,
    name: str,
    account: str,
    *,
    signing_keys: Sequence[str | Mapping[str, Any]] = (),
    exports: Sequence[Mapping[str, Any]] = (),
    imports: Sequence[Mapping[str, Any]] = (),
    revocations: Mapping[str, int] | None = None,
    jetstream: bool = False,
) -> str:
    """Make the JWT of an account.

    Args:
        issuer: The key of the operator, or a signing key of the operator.
        name: The name of the account.
        account: The public key of the account.
        signing_keys: The public keys that may sign users, and the scopes that `scope` returns.
        exports: The exports, as in the JWT.
        imports: The imports, as in the JWT.
        revocations: The Unix time of the revocation, by the public key of the user. Older JWTs of the user are refused.
        jetstream: Allow the account to use JetStream; default False.

    Returns:
        The JWT.
    """
    claims: dict[str, Any] = {"limits": {**_ACCOUNT_LIMITS, **(_JETSTREAM_LIMITS if jetstream else {})}}
    for field, values in (("signing_keys", signing_keys), ("exports", exports), ("imports", imports)):
        if values:
            claims[field] = list(values)
    if revocations:
        claims["revocations"] = dict(revocations)
    return _sign(issuer, "account", name, account, claims)


def scope(signing_key: str, role: str, rights: Permissions) -> dict[str, Any]:
    """Return the scope of a signing key, with the permissions of all users that the key signs.

    Args:
        signing_key: The public key of the signing key. Its kind is account.
        role: The name of the scope.
        rights: The permissions. They may contain templates such as `{{name()}}` and `{{tag(team)}}`.

    Returns:
        The scope, as an element of `signing_keys` in the JWT of the account.
    """
    template = {**permission_claims(rights), **_USER_LIMITS}
    return {"kind": "user_scope", "key": signing_key, "role": role, "template": template}


def user_jwt(
    issuer: NKey,
    name: str,
    user: str,
    *,
    account: str | None = None,
    audience: str | None = None,
    rights: Permissions | None = None,
    tags: Sequence[str] = (),
    expires: int | None = None,
) -> str:
    """Make the JWT of a user.

    Args:
        issuer: The key of the account, or a signing key of the account.
        name: The name of the user.
        user: The public key of the user.
        account: The public key of the account, if `issuer` is a signing key.
        audience: The name of the account, for a user that an auth callout admits.
        rights: The permissions; None if the scope of the signing key has the permissions.
        tags: The values for the templates of the scope, such as `team:billing`.
        expires: The Unix time at which the JWT expires. Default: the JWT does not expire.

    Returns:
        The JWT.
    """
    claims: dict[str, Any] = {} if rights is None else {**permission_claims(rights), **_USER_LIMITS}
    if account is not None:
        claims["issuer_account"] = account
    if tags:
        claims["tags"] = list(tags)
    others: dict[str, Any] = {}
    if audience is not None:
        others["aud"] = audience
    if expires is not None:
        others["exp"] = expires
    return _sign(issuer, "user", name, user, claims, **others)


def authorization_response(
    issuer: NKey, user: str, server: str, *, jwt: str = "", error: str = "", account: str | None = None
) -> str:
    """Make the answer of an auth callout to a server.

    Args:
        issuer: The key of the account that the server trusts for the callout.
        user: The public key that the server has made for the connection.
        server: The id of the server.
        jwt: The JWT of the admitted user; empty if the connection is refused.
        error: The reason of a refusal; empty if the user is admitted.
        account: The public key of the account, if `issuer` is a signing key.

    Returns:
        The JWT of the answer.
    """
    claims: dict[str, Any] = {"jwt": jwt} if jwt else {"error": error}
    if account is not None:
        claims["issuer_account"] = account
    return _sign(issuer, "authorization_response", "", user, claims, aud=server)


def permission_claims(rights: Permissions) -> dict[str, Any]:
    """Return permissions in the form of a JWT.

    Args:
        rights: The permissions.

    Returns:
        The fields `pub`, `sub` and, if the user may answer requests, `resp`.
    """
    # An empty list of allowed subjects would allow every subject, so deny every subject instead.
    claims: dict[str, Any] = {
        name: {"allow": list(subjects)} if subjects else {"deny": [">"]}
        for name, subjects in (("pub", rights.publish), ("sub", rights.subscribe))
    }
    return {**claims, "resp": {"max": 1, "ttl": _RESPONSE_TTL_NS}} if rights.responses else claims


def read_jwt(text: str) -> dict[str, Any]:
    """Read a JWT, and check the signature with the key of the issuer that the JWT names.

    Anyone can sign a JWT with a key of their own, so the caller must check that the issuer is the expected one.

    Args:
        text: The JWT.

    Returns:
        The claims.

    Raises:
        ConfigurationError: The text is not a JWT of NATS, or the signature is wrong.
    """
    try:
        head, body, signature = text.strip().split(".")
        header, claims = json.loads(_bytes(head)), json.loads(_bytes(body))
        issuer = str(claims["iss"])
        algorithm, signed = header["alg"], verify(issuer, _bytes(signature), f"{head}.{body}".encode())
    except (ValueError, LookupError, TypeError) as error:
        raise ConfigurationError(f"the text is not a JWT of NATS: {error}") from None
    if algorithm != _HEADER["alg"] or not signed:
        raise ConfigurationError(f"the JWT is not signed by its issuer {issuer}")
    return dict(claims)


def credentials_text(jwt: str, key: NKey) -> str:
    """Return the content of a credentials file, for POINTSMAN_CREDENTIALS.

    Args:
        jwt: The JWT of the user.
        key: The key of the user.

    Returns:
        The text. The text is a secret.
    """
    return (
        f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{key.seed}\n------END USER NKEY SEED------\n"
    )


def _sign(issuer: NKey, kind: str, name: str, subject: str, claims: Mapping[str, Any], **others: Any) -> str:
    payload: dict[str, Any] = {
        "iat": int(time.time()),
        "iss": issuer.public,
        "name": name,
        "sub": subject,
        **others,
        "nats": {**claims, "type": kind, "version": 2},
    }
    payload["jti"] = b32encode(sha256(_json(payload)).digest()).decode().rstrip("=")
    signed = f"{_text(_json(_HEADER))}.{_text(_json(payload))}"
    return f"{signed}.{_text(issuer.sign(signed.encode()))}"


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _text(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))
