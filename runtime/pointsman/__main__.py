"""`python -m pointsman` is `pointsman`; a Ctrl-C while it is still being imported ends it as a later one does."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """The command line; exit code 130 when it is interrupted before a command runs."""
    try:
        from pointsman.cli.app import main as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("pointsman: interrupted\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
