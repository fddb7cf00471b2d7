"""The entry point of `pointsman` and `python -m pointsman`. The entry point handles Ctrl-C during the imports, too."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line. An interruption before a command runs ends the process with exit code 130."""
    try:
        from pointsman.cli.app import main as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("pointsman: interrupted\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
