"""The dashboard. It shows workflows in a browser, and uses the same calls as the command line.

`serve` needs the extra `dashboard`; importing this package does not.
"""

from __future__ import annotations

__all__: list[str] = []
