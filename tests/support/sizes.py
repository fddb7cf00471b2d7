"""Sizes of the reported faults: small for every test run, or as reported with `make cases`."""

from __future__ import annotations

import os
from dataclasses import dataclass

import pytest

__all__ = ["SIZE", "sized"]


@dataclass(frozen=True, slots=True)
class Size:
    """Times are in seconds."""

    outages: tuple[float, ...]
    """Seconds of an outage; each is a run of its own."""
    flood: int
    """Requests of 900 kB that are sent as fast as can be, when `flood_agents` take `flood_work` for each of them: all
    of those after the first come when the first has done a twentieth."""
    flood_agents: int
    flood_work: float
    half_done: int
    """Workflows that run when five supervisors start. One of them receives and sends everything `late`."""
    late: float
    ids: int
    """Requests of each of twenty callers, who number them alike."""
    rows: int
    """Rows of a batch, which may need little more memory than 200 rows."""
    growth: int
    """Workflows between two of three measurements of a process's memory."""
    together: int
    """Workflows running at a time."""
    slow: float
    """Delay of each piece of data to and from the broker meanwhile."""
    forgotten: int
    """Bytes of memory that each of them may leave behind."""
    tasks: int
    """Of one plan, over a network that takes 25 ms there and as long back."""
    unexported: int
    """Workflows without a collector before a process's memory is measured, and the same number after."""
    installed: tuple[tuple[str, str], ...]
    """Versions of Python, which have to be there, and resolutions of `uv`, which asks a package index."""
    patience: float
    """Seconds in which one test must end."""


_SHORT = Size(
    outages=(3.0,),
    flood=40,
    flood_agents=3,
    flood_work=0.05,
    half_done=40,
    late=0.5,
    ids=5,
    rows=2_500,
    growth=80,  # messages in flight change a measurement by some 50 kB
    together=20,
    slow=0.0,
    forgotten=2048,  # the id of each ended workflow is kept
    tasks=100,
    unexported=30,
    installed=(),
    patience=120,
)
_REPORTED = Size(
    outages=(30.0, 180.0),  # the client library gives up after 60 times 2 s unless told otherwise
    flood=3_000,
    flood_agents=20,
    flood_work=1.0,
    half_done=100,
    late=3.0,
    ids=100,
    rows=10_000,
    growth=6_700,
    together=200,
    slow=0.025,
    forgotten=512,
    tasks=2_000,
    unexported=500,
    installed=(("3.11", "lowest-direct"), ("3.11", "highest"), ("3.13", "lowest-direct"), ("3.13", "highest")),
    patience=3_000,
)

SIZE = _REPORTED if os.environ.get("POINTSMAN_CASES") == "reported" else _SHORT

sized = pytest.mark.sized
"""Marks a test whose size is of `SIZE`. `make cases` runs these tests."""
