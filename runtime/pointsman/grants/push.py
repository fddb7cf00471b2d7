"""Send account JWTs to running servers, as the user of the system account."""

from __future__ import annotations

import json

from pointsman.bus.jetstream.connection import NatsConnection
from pointsman.errors import PeerError
from pointsman.grants.folder import GrantFolder
from pointsman.settings import Settings

__all__ = ["push_accounts"]

_SUBJECT = "$SYS.REQ.CLAIMS.UPDATE"
_TIMEOUT_S = 5.0


async def push_accounts(grants: GrantFolder, url: str) -> int:
    """Send the account JWTs of a folder to the servers at a URL.

    Args:
        grants: The folder. Its mode is `jwt`.
        url: The URL of the servers.

    Returns:
        The number of accounts that were sent.

    Raises:
        BusUnavailableError: The server does not answer.
        ConfigurationError: The server refuses the system user.
        PeerError: A server refuses an account.
    """
    settings = Settings(
        url=url, credentials=str(grants.system_credentials), inbox_prefix="_INBOX.sys", request_timeout=_TIMEOUT_S
    )
    connection = NatsConnection(
        settings,
        "pointsman-grants",
        on_lost=lambda: None,
        on_restored=lambda: None,
        on_no_responders=lambda subject: None,
    )
    await connection.open(_TIMEOUT_S)
    try:
        accounts = grants.account_jwts()
        for account, jwt in accounts.items():
            answer = json.loads((await connection.request(_SUBJECT, jwt.encode())()).data)
            if "error" in answer:
                raise PeerError(f"{settings.servers} refuses the account {account}: {answer['error']}")
    finally:
        await connection.close()
    return len(accounts)
