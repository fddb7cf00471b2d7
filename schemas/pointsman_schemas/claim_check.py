"""A claim is where the body of an event is kept that does not fit into a message, and what it must be.

It travels as the CloudEvents attribute `dataref` of a message without a body:
`nats-object://POINTSMAN_ARTIFACTS/NAME?size=3145728&sha256=HEX`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote

from pointsman_schemas.errors import UndecodableEvent

__all__ = ["DATAREF", "MAX_BODY", "Claim"]

DATAREF = "ce-dataref"
MAX_BODY = 8_388_608
"""Bytes that one event may have unless configured: eight messages of the broker's default, which a process still holds
by the hundred."""

_FORM = re.compile(r"nats-object://([A-Za-z0-9_-]{1,128})/([^/?#\s]{1,512})\?size=([0-9]{1,15})&sha256=([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class Claim:
    """An object of a bucket. `size` is in bytes, `sha256` in lower-case hexadecimal digits."""

    bucket: str
    name: str
    size: int
    sha256: str

    def encode(self) -> str:
        """As the header's value."""
        return f"nats-object://{self.bucket}/{quote(self.name, safe='')}?size={self.size}&sha256={self.sha256}"

    @classmethod
    def decode(cls, text: str) -> Claim:
        """Raises `UndecodableEvent` for a reference of another form."""
        found = _FORM.fullmatch(text)
        if found is None:
            raise UndecodableEvent(
                f"{DATAREF} is {text[:160]!r}; expected nats-object://BUCKET/NAME?size=BYTES&sha256=HEX, or a body"
            )
        return cls(bucket=found[1], name=unquote(found[2]), size=int(found[3]), sha256=found[4])
