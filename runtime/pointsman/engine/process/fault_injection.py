"""Fault points, at which tests make a process crash. A process kills itself at the point that POINTSMAN_FAULT names.

`POINTSMAN_FAULT=supervisor.committed:2` ends the process by SIGKILL after its second commit. Only tests set the
variable. Without the variable, a fault point does nothing.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from pointsman.errors import ConfigurationError
from pointsman.util.environment import variable

__all__ = ["FAULT_POINTS", "fault_point"]

FAULT_POINTS = (
    "supervisor.received",
    "supervisor.committed",
    "supervisor.sent",  # after one message of the outbox; other messages may be missing
    "supervisor.emitted",
    "supervisor.acked",
    "worker.received",
    "worker.ran",
    "worker.answered",
    "worker.acked",
)
"""The fault points, in the order in which a delivery passes them."""


def _disabled(point: str) -> None:
    pass


def _arm(fault: str) -> Callable[[str], None]:
    chosen, _, given = fault.partition(":")
    if chosen not in FAULT_POINTS or not (given or "1").isdecimal():
        raise ConfigurationError(
            f"POINTSMAN_FAULT is {fault!r}; expected one of {', '.join(FAULT_POINTS)}, alone or with :N for the N-th "
            "passage; unset the variable to run without a fault"
        )
    left = int(given or 1)

    def count_down(point: str) -> None:
        nonlocal left
        if point == chosen:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    return count_down


fault_point: Callable[[str], None] = _arm(_fault) if (_fault := variable("POINTSMAN_FAULT")) else _disabled
"""Mark a fault point. The call kills the process if POINTSMAN_FAULT names the point."""
