"""Read the findings of `pointsman doctor`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pointsman.settings import Settings
from support import ready

__all__ = ["doctor"]


async def doctor(settings: Settings) -> dict[str, Any]:
    """Return its failed checks by name. It has its own process, so its log settings do not change this one."""
    arguments = ["-m", "pointsman", "doctor", "--json", "--url", settings.url, "--namespace", settings.namespace]
    finished = await ready.run(arguments, environment=os.environ, folder=Path.cwd())
    assert finished.documents, f"doctor told of no check, and ended with {finished.code}: {finished.errors}"
    return {check["name"]: check for check in finished.documents if not check["ok"]}
