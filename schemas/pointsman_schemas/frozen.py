"""A model that nobody changes, and that is built when it is first made, read or written: most processes use few."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

__all__ = ["Frozen"]


class Frozen(BaseModel):
    """The base of what travels: equal by value, unknown fields passed over, built on first use."""

    model_config = ConfigDict(frozen=True, defer_build=True)
