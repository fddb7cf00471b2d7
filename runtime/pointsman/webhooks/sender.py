"""Send one signed delivery over HTTP/1.1, without redirects.

Unless private networks are allowed, all IP addresses of the host must be public. This is checked before the connection
is made.
"""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import NamedTuple
from urllib.parse import urlsplit

import h11
from standardwebhooks.webhooks import Webhook

from pointsman.util.network import ip_address_of, is_public
from pointsman.util.threads import run_in_thread

__all__ = ["Response", "SendError", "Sender", "jittered", "signed_headers"]

_MAX_ADDRESSES = 4  # largest number of addresses of one host that are tried
_READ_BYTES = 16_384
_MAX_HEAD_BYTES = 32_768  # largest size of the head of a response
_MAX_RETRY_AFTER_S = 86_400.0


class Response(NamedTuple):
    """The response to a delivery.

    Attributes:
        status: The status code.
        retry_after: The seconds to wait before the next attempt, from the header `Retry-After`; 0 without the header.
    """

    status: int
    retry_after: float


class SendError(Exception):
    """A delivery got no response.

    Args:
        kind: `address_refused`, `unreachable`, `tls`, `timeout` or `protocol`.
        message: The error in one sentence.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def signed_headers(id: str, body: bytes, secrets: Sequence[str], now: datetime) -> Mapping[str, str]:
    """Return the headers of Standard Webhooks, with the id, the time, and a signature for each secret.

    Args:
        id: The id of the event, equal in each attempt.
        body: The body, which is UTF-8.
        secrets: The secrets, with or without `whsec_`.
        now: The time of the attempt.

    Returns:
        The headers.
    """
    text = body.decode()
    return {
        "webhook-id": id,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": " ".join(Webhook(each).sign(id, now.astimezone(UTC), text) for each in secrets),
    }


class Sender:
    """A client that sends deliveries. Each delivery has its own connection.

    The sender resolves a host, checks the IP addresses, and connects to a checked IP address. So a change of the DNS
    entry between the check and the connection has no effect. No proxy is used.

    Args:
        timeout: The seconds for the whole exchange.
        private_networks: Also send to addresses that are not public, and by plain HTTP.
        tls: The TLS configuration. Default: verify certificates by the CAs that the system trusts.
    """

    def __init__(self, *, timeout: float, private_networks: bool = False, tls: ssl.SSLContext | None = None) -> None:
        self._timeout = timeout
        self._private = private_networks
        self._tls = tls or ssl.create_default_context()

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> Response:
        """Send a body.

        Args:
            url: The URL, which begins with `https://` or `http://`.
            body: The body.
            headers: The headers.

        Returns:
            The response, of any status.

        Raises:
            SendError: There was no response, or nothing was sent because the address is refused.
        """
        try:
            async with asyncio.timeout(self._timeout):
                return await self._exchange(url, body, headers)
        except TimeoutError:
            raise SendError("timeout", f"there was no response within {self._timeout:g} s") from None
        except ssl.SSLError as error:
            raise SendError("tls", f"TLS failed: {str(error)[:200]}") from None
        except (OSError, UnicodeError) as error:  # UnicodeError: the name is not a valid name of a host
            raise SendError("unreachable", f"there was no connection: {str(error)[:200]}") from None
        except h11.ProtocolError as error:
            raise SendError("protocol", f"the exchange is not HTTP/1.1: {str(error)[:200]}") from None

    async def _exchange(self, url: str, body: bytes, headers: Mapping[str, str]) -> Response:
        parts = urlsplit(url)
        host = parts.hostname or ""
        secure = parts.scheme == "https"
        if not secure and not self._private:
            raise SendError("address_refused", "plain HTTP is for private networks; use an https:// URL")
        port = parts.port or (443 if secure else 80)
        reader, writer = await self._connect(host, port, self._tls if secure else None)
        try:
            connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEAD_BYTES)
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            fields = {
                "host": parts.netloc,
                "content-type": "application/json",
                "content-length": str(len(body)),
                "user-agent": "pointsman-webhooks",
                "connection": "close",
                **headers,
            }
            request = h11.Request(method="POST", target=target, headers=list(fields.items()))
            writer.write(connection.send(request) or b"")
            writer.write(connection.send(h11.Data(data=body)) or b"")
            writer.write(connection.send(h11.EndOfMessage()) or b"")
            # An endpoint might respond before it has read the whole body, so do not wait until the body is sent.
            return await _read_response(connection, reader)
        finally:
            writer.close()
            writer.transport.abort()  # the rest of the response is not read

    async def _connect(
        self, host: str, port: int, tls: ssl.SSLContext | None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to an address of a host.

        Returns:
            The streams of the connection.

        Raises:
            SendError: An address of the host is not public.
            SSLError: TLS failed.
            OSError: A connection to each tried address failed, or the host has no address.
        """
        # Use a separate thread, because a few hosts with slow name servers would fill the default executor.
        found = await run_in_thread(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys(str(each[4][0]) for each in found))
        for each in addresses if not self._private else ():
            parsed = ip_address_of(each.partition("%")[0])
            if parsed is None or not is_public(parsed):
                raise SendError(
                    "address_refused",
                    f"{host[:200]} has an address that is not public; "  # a caller must not see the address itself
                    "POINTSMAN_WEBHOOK_PRIVATE_NETWORKS=true allows such addresses",
                )
        failure: OSError | None = None
        for each in addresses[:_MAX_ADDRESSES]:
            try:
                return await asyncio.open_connection(each, port, ssl=tls, server_hostname=host if tls else None)
            except ssl.SSLError:
                raise
            except OSError as error:
                failure = error
        raise failure or OSError(f"{host} has no address")


async def _read_response(connection: h11.Connection, reader: asyncio.StreamReader) -> Response:
    """Read the head of the final response. Skip informational responses."""
    size = 0
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            data = await reader.read(_READ_BYTES)
            size += len(data)
            if size > _MAX_HEAD_BYTES + _READ_BYTES:
                raise SendError("protocol", f"the head of the response has more than {_MAX_HEAD_BYTES} bytes")
            connection.receive_data(data)
        elif isinstance(event, h11.Response):
            fields = {name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers}
            return Response(event.status_code, _retry_after(fields.get("retry-after", "")))
        elif not isinstance(event, h11.InformationalResponse):
            raise SendError("protocol", "the endpoint closed the connection without a response")


def _retry_after(text: str) -> float:
    """Return the seconds to wait that a `Retry-After` requests, at most a day; 0 for a value that cannot be read."""
    text = text.strip()
    seconds = 0.0
    if text.isascii() and text.isdecimal():
        seconds = float(text[:9])
    else:
        with suppress(ValueError, TypeError):
            at = parsedate_to_datetime(text)
            seconds = (at.replace(tzinfo=at.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    return min(max(0.0, seconds), _MAX_RETRY_AFTER_S)


def jittered(pause: float) -> float:
    """Make a pause longer by a random part of up to a tenth, so that many retries do not happen at the same time.

    Args:
        pause: The pause in seconds.

    Returns:
        The longer pause.
    """
    return pause * random.uniform(1.0, 1.1)
