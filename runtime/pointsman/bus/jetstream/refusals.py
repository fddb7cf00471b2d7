"""Read the refusals of the broker. The broker sends an asynchronous error instead of an answer to the request."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

__all__ = ["Refusal", "is_login_refused"]

_FORM = re.compile(
    r"""permissions violation for (publish with reply of|publish to|subscription to) "((?:[^"\\]|\\.)*)\"""",
    re.IGNORECASE,
)
_OPERATIONS: dict[str, Literal["publish", "reply", "subscribe"]] = {
    "publish to": "publish",
    "publish with reply of": "reply",
    "subscription to": "subscribe",
}
_LOGIN = re.compile(r"authorization (violation|failed)|authentication (expired|revoked)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refused permission to publish on `subject`, to subscribe to `subject`, or to use `subject` as a reply subject.

    `said` is the original text of the broker.
    """

    operation: Literal["publish", "reply", "subscribe"]
    subject: str
    said: str

    @classmethod
    def read(cls, said: str) -> Refusal | None:
        """Return the refusal in the text of an `-ERR`; None if the text reports another error."""
        if (found := _FORM.search(said)) is None:
            return None
        subject = re.sub(r"\\(.)", r"\1", found[2])
        return cls(_OPERATIONS[found[1].lower()], subject, said)

    def concerns(self, published: str, inbox: str) -> bool:
        """Return True if, because of this refusal, a request on `published` gets no answer at `inbox`."""
        match self.operation:
            case "publish":
                return self.subject == published
            case "reply" | "subscribe":
                return self.subject == inbox

    @property
    def kind(self) -> tuple[str, str]:
        """Return the kind of the refusal. Refusals of the same kind are reported once.

        For two prefixes, the kind ignores the rest of the subject: for `$JS.ACK.`, because the last tokens differ in
        each acknowledgement, and for `$SRV.`, because each service has nine subjects.
        """
        for prefix in ("$JS.ACK.", "$SRV."):
            if self.subject.startswith(prefix):
                return self.operation, prefix
        return self.operation, self.subject


def is_login_refused(said: str) -> bool:
    """Return True if the broker refuses the login of the user, not only a request."""
    return _LOGIN.search(said) is not None
