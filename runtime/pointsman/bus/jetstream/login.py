"""Choose the user, password and token for `CONNECT`. The settings take precedence over the URL of a server."""

from __future__ import annotations

import getpass
from dataclasses import dataclass
from importlib.util import find_spec
from urllib.parse import unquote, urlsplit

from pointsman.bus.jetstream.credentials import CredentialsFile
from pointsman.errors import ConfigurationError
from pointsman.settings import Settings
from pointsman_schemas.ids import as_token, is_token

__all__ = ["ANONYMOUS_USER", "Address", "Login", "addresses", "user_name"]


ANONYMOUS_USER = "anonymous"
"""The user in subjects if the login and the operating system have no name."""


@dataclass(frozen=True, slots=True)
class Address:
    """A server's URL without its login, and the login of the URL. The login is decoded once, so `%40` is an `@`."""

    url: str
    user: str | None = None
    password: str | None = None
    token: str | None = None

    @property
    def has_login(self) -> bool:
        """Return True if the URL contained a user or a token."""
        return self.user is not None or self.token is not None


def addresses(urls: str) -> list[Address]:
    """Return the servers of comma-separated URLs, in order."""
    return [_address(url) for url in urls.split(",")]


def _address(url: str) -> Address:
    parts = urlsplit(url if "//" in url else f"//{url}")
    userinfo, found, place = parts.netloc.rpartition("@")
    bare = parts._replace(netloc=place).geturl().removeprefix("//" if "//" not in url else "")
    if not found:
        return Address(bare)
    user, has_password, password = userinfo.partition(":")
    if has_password:
        return Address(bare, user=unquote(user), password=unquote(password))
    return Address(bare, token=unquote(user))


class Login:
    """The login of a process at every server of its broker.

    The first login in the URLs is also used at servers that have no login of their own: servers that the cluster
    announces, and servers whose URL has no login.

    Raises:
        ConfigurationError: The credentials file cannot be used, or a package that a setting needs is missing.
    """

    def __init__(self, settings: Settings) -> None:
        self.addresses = addresses(settings.url)
        if settings.url.startswith(("ws://", "wss://")) and find_spec("aiohttp") is None:
            raise ConfigurationError(
                "POINTSMAN_URL with ws:// or wss:// needs aiohttp: pip install 'pointsman[websocket]'"
            )
        self.credentials = CredentialsFile(settings.credentials) if settings.credentials else None
        self.has_certificate = settings.tls_cert is not None
        self._settings = settings
        self._of_urls = next((each for each in self.addresses if each.has_login), Address(""))

    def at(self, place: str) -> Address:
        """Return the user, password and token for the server at `place`, which is HOST:PORT."""
        settings = self._settings
        if settings.user is not None and settings.password is not None:
            return Address(place, user=settings.user, password=settings.password)
        if settings.token is not None:
            return Address(place, token=settings.token)
        own = next((each for each in self.addresses if each.has_login and _place(each.url) == place), None)
        return own or self._of_urls

    @property
    def user(self) -> str | None:
        """Return the name of the user at the broker; None for a login without a name."""
        if self._settings.user is not None:
            return self._settings.user
        return self.credentials.user if self.credentials is not None else self.at("").user

    def __str__(self) -> str:
        """Describe the user for messages, without a secret."""
        settings, login = self._settings, self.at("")
        if self.credentials is not None:
            return f"user {self.credentials.user!r} of {settings.credentials}"
        if login.user is not None:
            return f"user {login.user!r}"
        if login.token is not None:
            return "the user of a token"
        if settings.tls_cert is not None:
            return f"the user of the client certificate {settings.tls_cert}"
        if settings.password is not None:
            return "a client without a login; POINTSMAN_PASSWORD is a login only together with POINTSMAN_USER"
        if settings.user is not None:
            return "a client without a login; POINTSMAN_USER is a login only together with POINTSMAN_PASSWORD"
        return "a client without a login"


def user_name(settings: Settings) -> str:
    """Return the name of the user in the subjects of requests and controls.

    Permissions can limit a user to subjects that contain the name of this user at the broker. So this name is the first
    choice.

    Args:
        settings: The settings.

    Returns:
        The name of the user of the login, if this name is a token of a subject. Otherwise the user of the operating
        system, as a token. Without such a user, `anonymous`.
    """
    if (name := Login(settings).user) is not None and is_token(name):
        return name
    try:
        return as_token(getpass.getuser())
    except (KeyError, OSError):  # in a container, a user can have a number but no name
        return ANONYMOUS_USER


def _place(url: str) -> str:
    netloc = urlsplit(url if "//" in url else f"//{url}").netloc
    return netloc if netloc.rpartition(":")[2].isdecimal() else f"{netloc.rstrip(':')}:4222"
