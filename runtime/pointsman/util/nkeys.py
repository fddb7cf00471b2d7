"""Encode and decode the Ed25519 keys of NATS (ADR-14). A key is base32 text with a prefix for its kind, and a CRC-16.

This module replaces the package `nkeys`, because `nkeys` has no wheel. `cryptography` is imported when a key is used.
"""

from __future__ import annotations

from base64 import b32decode, b32encode
from binascii import crc_hqx
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

__all__ = ["KeyKind", "NKey", "is_public_key", "verify"]

KeyKind = Literal["operator", "account", "user", "server"]

_PREFIXES: dict[KeyKind, int] = {"operator": 14 << 3, "account": 0, "user": 20 << 3, "server": 13 << 3}  # O, A, U, N
_SEED_PREFIX = 18 << 3  # S in base32
_KEY_BYTES = 32
_CRC_BYTES = 2


class NKey:
    """A private key and its public key, in the text form of NATS.

    Args:
        kind: The owner of the key: an operator, an account, a user or a server.
        key: The private key.
    """

    def __init__(self, kind: KeyKind, key: Ed25519PrivateKey) -> None:
        self.kind: KeyKind = kind
        self.key = key
        self.public = _encode(bytes([_PREFIXES[kind]]) + key.public_key().public_bytes_raw())
        """The public key, such as `UA...` for a user."""

    @classmethod
    def generate(cls, kind: KeyKind) -> NKey:
        """Make a new key.

        Args:
            kind: The owner of the key.

        Returns:
            The key.
        """
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return cls(kind, Ed25519PrivateKey.generate())

    @classmethod
    def from_seed(cls, seed: str) -> NKey:
        """Read a seed, such as `SU...` for a user.

        Args:
            seed: The seed.

        Returns:
            The key.

        Raises:
            ValueError: The text is not a seed, or is damaged. The message is only a predicate, such as "is damaged":
                put a subject before it.
        """
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        body = _decode(seed, 2 + _KEY_BYTES)
        first, second = body[0] & 0b11111000, (body[0] & 0b111) << 5 | body[1] >> 3
        kind: KeyKind | None = next((kind for kind, prefix in _PREFIXES.items() if prefix == second), None)
        if first != _SEED_PREFIX or kind is None:
            raise ValueError("is not the seed of an operator, an account, a user or a server")
        return cls(kind, Ed25519PrivateKey.from_private_bytes(body[2:]))

    @property
    def seed(self) -> str:
        """The private key as text. Keep it secret."""
        prefix = _PREFIXES[self.kind]
        return _encode(bytes([_SEED_PREFIX | prefix >> 5, (prefix & 0b11111) << 3]) + self.key.private_bytes_raw())

    def sign(self, data: bytes) -> bytes:
        """Sign data.

        Args:
            data: The data.

        Returns:
            The signature, of 64 bytes.
        """
        return self.key.sign(data)


def is_public_key(text: str, kind: KeyKind) -> bool:
    """Return True if a text is an undamaged public key of a kind.

    Args:
        text: The text.
        kind: The expected owner of the key.

    Returns:
        True for a public key of this kind.
    """
    try:
        return _decode(text, 1 + _KEY_BYTES)[0] == _PREFIXES[kind]
    except ValueError:
        return False


def verify(public: str, signature: bytes, data: bytes) -> bool:
    """Check a signature.

    Args:
        public: The public key of the signer.
        signature: The signature.
        data: The signed data.

    Returns:
        True if the signer signed this data.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(_decode(public, 1 + _KEY_BYTES)[1:]).verify(signature, data)
    except (ValueError, InvalidSignature):
        return False
    return True


def _encode(body: bytes) -> str:
    return b32encode(body + crc_hqx(body, 0).to_bytes(_CRC_BYTES, "little")).decode().rstrip("=")


def _decode(text: str, size: int) -> bytes:
    """Return the bytes of an encoded key, without the CRC.

    Raises:
        ValueError: The text is not base32, does not have `size` bytes, or has a wrong CRC.
    """
    try:
        raw = b32decode(text + "=" * (-len(text) % 8))
    except ValueError:
        raise ValueError("cannot be read: it is not base32") from None
    body, crc = raw[:-_CRC_BYTES], raw[-_CRC_BYTES:]
    if len(body) != size or crc_hqx(body, 0) != int.from_bytes(crc, "little"):
        raise ValueError("is damaged")
    return body
