"""Sign agent cards, and publish the public key that verifies the signatures."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

from a2a.types.a2a_pb2 import AgentCard
from a2a.utils.signing import ProtectedHeader, create_agent_card_signer
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from jwt.algorithms import ECAlgorithm
from jwt.utils import base64url_encode

from pointsman.errors import ConfigurationError

__all__ = ["KEY_SET_NAME", "CardSigner"]

KEY_SET_NAME = "keys.json"
"""The name of the document with the public key, below `/a2a`."""


class CardSigner:
    """Signs cards by ES256.

    Args:
        path: A PEM file with a private key of the curve P-256.

    Raises:
        ConfigurationError: The file has no such key.
    """

    def __init__(self, path: str) -> None:
        advice = "make a key with `openssl ecparam -name prime256v1 -genkey -noout -out card.pem`"
        try:
            self._pem = Path(path).read_bytes()
            key = load_pem_private_key(self._pem, None)
        except (OSError, ValueError, TypeError) as error:
            raise ConfigurationError(f"POINTSMAN_GATEWAY_A2A_SIGNING_KEY is {path}: {error}; {advice}") from None
        if not isinstance(key, EllipticCurvePrivateKey) or not isinstance(key.curve, SECP256R1):
            raise ConfigurationError(
                f"POINTSMAN_GATEWAY_A2A_SIGNING_KEY is {path}, which has no key of the curve P-256; {advice}"
            )
        public: dict[str, Any] = json.loads(ECAlgorithm.to_jwk(key.public_key()))
        named = {name: public[name] for name in ("crv", "kty", "x", "y")}
        thumbprint = sha256(json.dumps(named, sort_keys=True, separators=(",", ":")).encode()).digest()  # RFC 7638
        self._id = base64url_encode(thumbprint).decode()
        self.key_set = {"keys": [{**named, "kid": self._id, "alg": "ES256", "use": "sig"}]}
        """The JSON Web Key Set with the public key."""

    def sign(self, card: AgentCard, key_set_url: str) -> AgentCard:
        """Add a signature to a card.

        Args:
            card: The card, which is changed.
            key_set_url: The URL of the key set.

        Returns:
            The card.
        """
        header = ProtectedHeader(kid=self._id, alg="ES256", jku=key_set_url, typ="JOSE")
        return create_agent_card_signer(self._pem, header)(card)
