"""Read a NATS credentials file, and sign the server's nonce with the key in the file.

A credentials file contains a user's JWT and the seed of the user's Ed25519 key. nats-py signs with the package `nkeys`,
which has no wheel. So this module signs with `cryptography`, which has a wheel.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode, urlsafe_b64decode
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from pointsman.errors import ConfigurationError
from pointsman.util.files import read_file
from pointsman.util.lazy_import import structlog
from pointsman.util.nkeys import NKey

__all__ = ["Credentials", "CredentialsFile"]

_log = structlog.get_logger(__name__)

_SETTING = "POINTSMAN_CREDENTIALS"
_BLOCK = re.compile(r"-{3,}\s*BEGIN ([A-Z ]+?)\s*-{3,}(.*?)-{3,}\s*END \1\s*-{3,}", re.DOTALL)
_JWT, _SEED = "NATS USER JWT", "USER NKEY SEED"


@dataclass(frozen=True, slots=True)
class Credentials:
    """The content of a credentials file: the user's JWT, name and key."""

    jwt: str
    name: str
    key: NKey


class CredentialsFile:
    """A credentials file. The file is read again at each connection, so renewed credentials need no restart.

    Args:
        path: The file; `~` stands for the home directory.

    Raises:
        ConfigurationError: The package `cryptography` is missing, or the file is not a user's credentials.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._latest = _load(path)

    @property
    def user(self) -> str:
        """The name of the user in the JWT, or the user's public key."""
        return self._latest.name or self._latest.key.public

    def jwt(self) -> bytearray:
        """Read the file, and return the JWT for `CONNECT`. If the file cannot be used, return the last JWT."""
        try:
            self._latest = _load(self._path)
        except ConfigurationError as error:
            _log.error("credentials_not_read", reason=str(error), hint="the last credentials stay in use")
        return bytearray(self._latest.jwt.encode())

    def sign(self, nonce: str) -> bytes:
        """Return the signature of `nonce` in base64."""
        return b64encode(self._latest.key.sign(nonce.encode()))


def _load(path: str) -> Credentials:
    if find_spec("cryptography") is None:
        raise ConfigurationError(f"{_SETTING} needs cryptography: pip install 'pointsman[credentials]'")
    text = read_file(_SETTING, path)
    blocks = {name: "".join(content.split()) for name, content in _BLOCK.findall(text)}
    if not blocks and re.fullmatch(r"\s*S[A-Z2-7]{57}\s*", text):
        raise _misfit(path, "has only a seed and no JWT")
    if not blocks:
        raise _misfit(path, "is empty" if not text.strip() else "is not a credentials file")
    for name, what in ((_JWT, "user JWT"), (_SEED, "seed")):
        if not blocks.get(name):
            raise _misfit(path, f"has no {what}")
    claims = _claims(path, blocks[_JWT])
    try:
        key = NKey.from_seed(blocks[_SEED])
    except ValueError as error:
        raise _misfit(path, f"has a seed that {error}") from None
    if key.kind != "user":
        raise _misfit(path, "has a seed that is not the seed of a user")
    if claims.get("sub") != key.public:
        raise _misfit(path, f"has the seed of {key.public}, but the JWT of {claims.get('sub')}")
    return Credentials(blocks[_JWT], str(claims.get("name") or ""), key)


def _claims(path: str, jwt: str) -> dict[str, Any]:
    parts = jwt.split(".")
    try:
        claims = json.loads(urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        kind = claims["nats"].get("type") or claims.get("type")
    except (ValueError, LookupError, TypeError, AttributeError):
        raise _misfit(path, "has a JWT that cannot be read") from None
    if len(parts) != 3 or kind != "user":
        raise _misfit(path, f"has a JWT of the type {kind!r}")
    return dict(claims)


def _misfit(path: str, seen: str) -> ConfigurationError:
    return ConfigurationError(
        f"{_SETTING}: {path} {seen}; expected a credentials file of a user, with its JWT and its seed, as "
        "`nsc generate creds` writes"
    )
