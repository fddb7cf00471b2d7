"""Define references to event bodies that are too large for a message and are stored in the object store (claim check).

A reference is the CloudEvents attribute `dataref` of a message without a body:
`nats-object://POINTSMAN_ARTIFACTS/NAME?size=3145728&sha256=HEX`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote

from pointsman_schemas.errors import UndecodableEventError

__all__ = ["DATAREF_HEADER", "MAX_BODY_BYTES", "Claim"]

DATAREF_HEADER = "ce-dataref"
MAX_BODY_BYTES = 8_388_608
"""Default limit of the size of an event, in bytes: eight times the broker's default limit for a message.

The limit is not higher, so that the memory of a process has room for a hundred events of this size.
"""

_REFERENCE_PATTERN = re.compile(
    r"nats-object://([A-Za-z0-9_-]{1,128})/([^/?#\s]{1,512})\?size=([0-9]{1,15})&sha256=([0-9a-f]{64})"
)


@dataclass(frozen=True, slots=True)
class Claim:
    """A reference to an object in a bucket.

    Attributes:
        bucket: The name of the bucket.
        name: The name of the object.
        size: The size of the body in bytes.
        sha256: The SHA-256 of the body, in lower-case hexadecimal digits.
    """

    bucket: str
    name: str
    size: int
    sha256: str

    def encode(self) -> str:
        """Return the reference as the value of the header.

        Returns:
            The URL of the object.
        """
        return f"nats-object://{self.bucket}/{quote(self.name, safe='')}?size={self.size}&sha256={self.sha256}"

    @classmethod
    def decode(cls, text: str) -> Claim:
        """Parse the value of the header.

        Args:
            text: The URL of the object.

        Returns:
            The reference.

        Raises:
            UndecodableEventError: The text does not have the form of a reference.
        """
        found = _REFERENCE_PATTERN.fullmatch(text)
        if found is None:
            raise UndecodableEventError(
                f"{DATAREF_HEADER} is {text[:160]!r}; expected nats-object://BUCKET/NAME?size=BYTES&sha256=HEX,"
                " or a message with a body"
            )
        return cls(bucket=found[1], name=unquote(found[2]), size=int(found[3]), sha256=found[4])
