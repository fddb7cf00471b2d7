"""`python -m benchmarks.counted ARGUMENTS` is `pointsman ARGUMENTS` that says its number of objects once a minute."""

from __future__ import annotations

import gc
import sys
import threading

from pointsman.__main__ import main

__all__ = ["count"]

_EVERY = 60.0  # seconds


def count() -> None:
    """To standard error, for ever: `objects N blocks N`, what the collector follows and what has been allocated."""
    never = threading.Event()
    while not never.wait(_EVERY):
        sys.stderr.write(f"objects {len(gc.get_objects())} blocks {sys.getallocatedblocks()}\n")
        sys.stderr.flush()


if __name__ == "__main__":
    threading.Thread(target=count, daemon=True).start()
    main()
