"""`python -m pointsman` is `pointsman`."""

from __future__ import annotations

from pointsman.cli import main

if __name__ == "__main__":
    main()
