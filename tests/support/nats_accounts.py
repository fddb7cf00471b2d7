"""Make NATS operators, accounts and users in JWT mode, and the users' credentials files."""

from __future__ import annotations

import json
import time
from base64 import b32encode, urlsafe_b64encode
from binascii import crc_hqx
from collections.abc import Mapping
from hashlib import sha512
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

__all__ = ["JwtAccounts", "NKey"]

_PREFIXES = {"operator": 14 << 3, "account": 0, "user": 20 << 3}  # NATS ADR-14: O, A, U in base32
_SEED = 18 << 3


class NKey:
    """A new key of an operator, an account or a user. `public` and `seed` are in the encoding of NATS."""

    def __init__(self, kind: str) -> None:
        self._key = Ed25519PrivateKey.generate()
        prefix = _PREFIXES[kind]
        self.public = _encoded(bytes([prefix]) + self._key.public_key().public_bytes_raw())
        first, second = _SEED | prefix >> 5, (prefix & 0b11111) << 3
        self.seed = _encoded(bytes([first, second]) + self._key.private_bytes_raw())

    def sign_claims(self, kind: str, name: str, subject: str, content: Mapping[str, Any], **claims: Any) -> str:
        """Return a JWT of `kind` for `subject`, signed with this key."""
        payload = {
            "iat": int(time.time()),
            "iss": self.public,
            "name": name,
            "sub": subject,
            "nats": {**content, "type": kind, "version": 2},
            **claims,
        }
        payload["jti"] = b32encode(sha512(json.dumps(payload).encode()).digest()[:32]).decode().rstrip("=")
        signed = f"{_url64({'typ': 'JWT', 'alg': 'ed25519-nkey'})}.{_url64(payload)}"
        return f"{signed}.{_raw64(self._key.sign(signed.encode()))}"


class JwtAccounts:
    """An operator with an account `APP`. The account has JetStream by default.

    `config` is the part of a nats-server configuration that trusts the operator.
    """

    def __init__(self, *, jetstream: bool = True) -> None:
        self._operator, system = NKey("operator"), NKey("account")
        self.account = NKey("account")
        self._limits = {"subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": True,
                        "conn": -1, "leaf": -1}  # fmt: skip
        storage = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1} if jetstream else {}
        operator = self._operator.sign_claims(
            "operator", "OP", self._operator.public, {"system_account": system.public}
        )
        accounts = {
            system.public: self._operator.sign_claims("account", "SYS", system.public, {"limits": self._limits}),
            self.account.public: self._operator.sign_claims(
                "account", "APP", self.account.public, {"limits": {**self._limits, **storage}}
            ),
        }
        preload = "\n".join(f"  {public}: {jwt}" for public, jwt in accounts.items())
        self.config = (
            f"operator: {operator}\nsystem_account: {system.public}\nresolver: MEMORY\n"
            f"resolver_preload: {{\n{preload}\n}}\n"
        )

    def credentials(self, name: str, *, permissions: Mapping[str, Any] | None = None, **claims: Any) -> str:
        """Return the content of a credentials file of a new user."""
        user = NKey("user")
        content = {"subs": -1, "data": -1, "payload": -1, **(permissions or {})}
        jwt = self.account.sign_claims("user", name, user.public, content, **claims)
        return (
            f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
            "************************* IMPORTANT *************************\n"
            "NKEY Seed printed below can be used to sign and prove identity.\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{user.seed}\n------END USER NKEY SEED------\n"
        )

    def write(self, path: Path, name: str, **others: Any) -> Path:
        """Write the credentials file of a new user and return its path."""
        path.write_text(self.credentials(name, **others))
        return path


def _encoded(body: bytes) -> str:
    return b32encode(body + crc_hqx(body, 0).to_bytes(2, "little")).decode().rstrip("=")


def _raw64(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")


def _url64(value: Mapping[str, Any]) -> str:
    return _raw64(json.dumps(value, separators=(",", ":")).encode())
