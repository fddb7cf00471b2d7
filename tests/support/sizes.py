"""Sizes of the reported faults: small by default, and the reported sizes with `make cases`."""

from __future__ import annotations

import os
from dataclasses import dataclass

import pytest

__all__ = ["SIZE", "sized"]


@dataclass(frozen=True, slots=True)
class Size:
    """The sizes of all cases. Times are in seconds."""

    outages: tuple[float, ...]
    """Seconds of an outage, each for a separate run."""
    flood: int
    """Requests of 900 kB, sent without pauses to `flood_agents`, which need `flood_work` for each. The first agent is
    alone until it has done a twentieth; then the others start."""
    flood_agents: int
    flood_work: float
    half_done: int
    """Workflows that run when five supervisors start. One of them receives and sends everything `late`."""
    late: float
    ids: int
    """Requests of each of twenty callers, which use the same numbers."""
    rows: int
    """Rows of a batch. They may need only a little more memory than 200 rows."""
    growth: int
    """Workflows between two measurements of a process's memory. There are three measurements."""
    together: int
    """Workflows that run at the same time."""
    slow: float
    """Delay of each piece of data to and from the broker during the measurements."""
    forgotten: int
    """Bytes of memory that each workflow may leave behind."""
    tasks: int
    """Tasks of one plan, over a network with a delay of 25 ms in each direction."""
    unexported: int
    """Workflows without a collector, before the memory of a process is measured and again after."""
    installed: tuple[tuple[str, str], ...]
    """Installed versions of Python, and resolutions of `uv`, which needs a package index."""
    patience: float
    """Time limit of a test."""


_SHORT = Size(
    outages=(3.0,),
    flood=40,
    flood_agents=3,
    flood_work=0.05,
    half_done=40,
    late=0.5,
    ids=5,
    rows=2_500,
    growth=80,  # messages in flight change a measurement by about 50 kB
    together=20,
    slow=0.0,
    forgotten=2048,  # the id of each ended workflow is kept
    tasks=100,
    unexported=30,
    installed=(),
    patience=120,
)
_REPORTED = Size(
    outages=(30.0, 180.0),  # by default, the client library stops after 60 attempts of 2 s
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
"""Marks a test that depends on `SIZE`. `make cases` runs these tests."""
