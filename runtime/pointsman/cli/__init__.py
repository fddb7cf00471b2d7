"""The command line: what is typed is declared in `declared`, and what it does lives beside it, loaded when it runs."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """The console script."""
    from pointsman.cli.plain import service
    from pointsman.cli.render.output import degrade, ending

    degrade()
    if run := service(sys.argv[1:]):
        sys.exit(ending(run))
    from pointsman.cli.declared import app, only

    only("".join(sys.argv[1:2]))
    sys.exit(ending(app))
