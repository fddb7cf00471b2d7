"""The command line: what is typed is declared in `declared`, and what it does lives beside it, loaded when it runs."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """The console script."""
    from pointsman.cli.plain import fast_command
    from pointsman.cli.render.output import exit_code_of, use_ascii_signs

    use_ascii_signs()
    if run := fast_command(sys.argv[1:]):
        sys.exit(exit_code_of(run))
    from pointsman.cli.declared import app, keep_only

    keep_only("".join(sys.argv[1:2]))
    sys.exit(exit_code_of(app))
