"""The result of one check of `pointsman doctor`."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Check"]


@dataclass(frozen=True, slots=True)
class Check:
    """The result of a check. `advice` is the next step if the check is not `ok`."""

    name: str
    ok: bool
    finding: str
    advice: str = ""
