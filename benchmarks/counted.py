"""Run `pointsman ARGUMENTS` and log the number of objects each minute: `python -m benchmarks.counted ARGUMENTS`."""

from __future__ import annotations

import gc
import sys
import threading

from pointsman.__main__ import main

__all__ = ["count"]

_INTERVAL_S = 60.0


def count() -> None:
    """Write `objects N blocks N` to standard error, forever: the collector's objects and the allocated blocks."""
    never = threading.Event()
    while not never.wait(_INTERVAL_S):
        sys.stderr.write(f"objects {len(gc.get_objects())} blocks {sys.getallocatedblocks()}\n")
        sys.stderr.flush()


if __name__ == "__main__":
    threading.Thread(target=count, daemon=True).start()
    main()
