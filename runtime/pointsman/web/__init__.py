"""The dashboard: a thin face, in a browser, over the calls that the command line makes, and nothing of its own beside.

`serve` needs the extra `dashboard`; importing this package does not.
"""

from __future__ import annotations

__all__: list[str] = []
