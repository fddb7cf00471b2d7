"""Serve the auth callout. The broker sends a request for each connection whose login the configuration does not have.

The broker sends the login of the connection in a signed request. The service answers with the JWT of a user or with a
refusal. The policy and the table of rights decide about the permissions of the user. The log of the broker has the
reason of a refusal; the client does not get the reason.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from pointsman.bus.jetstream.connection import NatsConnection
from pointsman.bus.jetstream.protocol import WireMessage
from pointsman.errors import ConfigurationError, PointsmanError
from pointsman.grants.jwt import authorization_response, read_jwt, user_jwt
from pointsman.grants.permissions import Grant, permissions
from pointsman.grants.policy import Policy
from pointsman.grants.server_config import edge_account
from pointsman.settings import Settings
from pointsman.util.lazy_import import structlog
from pointsman.util.nkeys import NKey, is_public_key
from pointsman.util.oidc import IssuerKeys, named_issuer

__all__ = ["AuthCallout", "serve_callout"]

_log = structlog.get_logger(__name__)

_SUBJECT = "$SYS.REQ.USER.AUTH"
_REQUEST_AUDIENCE = "nats-authorization-request"
_KEY_LIFETIME_S = 3600  # seconds after which a user with an API key must log in again, and the policy is asked again


class AuthCallout:
    """Decides for each connection which user it gets.

    Args:
        policy: The keys and rules.
        issuer: The account key that is `issuer` in the server's configuration.
        account: The account with the streams.
        users: The names of the users in the server's configuration. The callout gives these names to no connection,
            because two users of one name would receive each other's answers.

    Raises:
        ConfigurationError: In the policy, a URL of an issuer is neither https nor on this machine, or an API key has
            the name of a user of the configuration.
    """

    def __init__(self, policy: Policy, issuer: NKey, account: str, users: Iterable[str] = ()) -> None:
        taken = frozenset(users)
        for key in policy.keys:
            if key.name in taken:
                raise ConfigurationError(
                    f"the API key {key.name!r} has the name of a user of the server's configuration, and would "
                    f"receive the answers to this user; choose a different name"
                )
        self._taken = taken | {key.name for key in policy.keys}
        self._policy = policy
        self._issuer = issuer
        self._account = account
        self._issuers = {each.issuer: (each, IssuerKeys(each.issuer, each.jwks)) for each in policy.issuers}

    async def answer(self, request: bytes) -> bytes | None:
        """Answer a request of the broker.

        Args:
            request: The request, a JWT that the server has signed.

        Returns:
            The answer; None for a request that does not come from a server.
        """
        try:
            user, server, asked = _read_request(request)
        except (PointsmanError, LookupError, TypeError) as error:
            _log.warning("callout_request_refused", reason=str(error), hint="only servers may send callout requests")
            return None
        login: Mapping[str, Any] = asked.get("connect_opts") or {}
        try:
            grant, namespace, expires = await self._decide(login)
        except PointsmanError as error:
            _log.warning("login_refused", reason=str(error), client=str((asked.get("client_info") or {}).get("host")))
            return authorization_response(self._issuer, user, server, error=str(error)).encode()
        account = self._account if grant.trusted else edge_account(self._account)
        rights = permissions(grant, namespace)
        jwt = user_jwt(self._issuer, grant.name, user, audience=account, rights=rights, expires=expires)
        _log.info("login_granted", user=grant.name, role=grant.role.value)
        return authorization_response(self._issuer, user, server, jwt=jwt).encode()

    async def _decide(self, login: Mapping[str, Any]) -> tuple[Grant, str, int]:
        """Return the grant and the namespace of a login, and the Unix time at which the user must log in again.

        Raises:
            ConfigurationError: The policy has no grant for the login.
            TokenRefusedError: The token is not valid.
            PeerError: The keys of the token's issuer cannot be read.
        """
        given = str(login.get("auth_token") or login.get("pass") or "")
        if not given:
            raise ConfigurationError("the login has no token; set POINTSMAN_TOKEN to an API key or an OIDC token")
        if (found := self._policy.key(given)) is not None:
            grant, namespace = found
            return grant, namespace, int(time.time()) + _KEY_LIFETIME_S
        if (known := self._issuers.get(named_issuer(given) or "")) is not None:
            issuer, keys = known
            claims = await keys.verify(given, issuer.audience)
            grant, namespace = self._policy.oidc(issuer, claims)
            if grant.name in self._taken:
                raise ConfigurationError(
                    f"the token names the user {grant.name!r}, but an API key or the configuration already has this "
                    f"user; in the policy, name a claim with different values"
                )
            return grant, namespace, int(claims["exp"])
        raise ConfigurationError(
            "the token is neither an API key of the policy nor an OIDC token of an issuer in the policy"
        )


def _read_request(request: bytes) -> tuple[str, str, Mapping[str, Any]]:
    """Return the key of the connection, the id of the server, and the content of a request.

    Raises:
        ConfigurationError: The request is not an authorization request, or is not signed by the server whose id is in
            the request.
    """
    claims = read_jwt(request.decode("utf-8", "replace"))
    asked = claims["nats"]
    user, server = str(asked["user_nkey"]), str(asked["server_id"]["id"])
    if claims.get("aud") != _REQUEST_AUDIENCE:
        raise ConfigurationError(f"the audience of the request is {claims.get('aud')!r}, not {_REQUEST_AUDIENCE!r}")
    if claims["iss"] != server:
        raise ConfigurationError("the request is not signed by the server whose id is in the request")
    if not is_public_key(user, "user") or not is_public_key(server, "server"):
        raise ConfigurationError("the keys in the request are not the keys of a server and a user")
    return user, server, asked


@asynccontextmanager
async def serve_callout(settings: Settings, callout: AuthCallout) -> AsyncIterator[NatsConnection]:
    """Answer the requests of the broker inside the `async with` block.

    Args:
        settings: The settings of the connection. The login belongs to a user in `auth_users` of the server's
            configuration.
        callout: Decides about each request.

    Yields:
        The connection.

    Raises:
        BusUnavailableError: No broker answers.
        ConfigurationError: The broker refuses the login or the subscription.
    """
    connection = NatsConnection(
        settings,
        "pointsman-callout",
        on_lost=lambda: None,
        on_restored=lambda: None,
        on_no_responders=lambda subject: None,
    )
    tasks = set[asyncio.Task[None]]()

    async def respond(message: WireMessage) -> None:
        if message.headers.get("Nats-Server-Xkey"):
            _log.warning(
                "callout_request_encrypted",
                reason="the server's configuration has an xkey, so requests are encrypted",
                hint="remove xkey from auth_callout; connect to the server with TLS",
            )
            return
        if (answer := await callout.answer(message.data)) is not None:
            await connection.send(message.reply, answer)

    def arrived(message: WireMessage) -> None:
        task = asyncio.ensure_future(respond(message))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    await connection.open(settings.request_timeout)
    try:
        await connection.subscribe(_SUBJECT, arrived)
        await connection.flush()
        yield connection
    finally:
        await asyncio.gather(*tasks, return_exceptions=True)
        await connection.close()
