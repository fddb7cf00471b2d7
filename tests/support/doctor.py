"""Read the findings of `pointsman doctor`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pointsman.settings import Settings
from support import ready

__all__ = ["doctor"]


async def doctor(settings: Settings) -> dict[str, Any]:
    """Return the failed checks of `pointsman doctor` by name. It runs as a process, so its logging stays apart."""
    arguments = ["-m", "pointsman", "doctor", "--json", "--url", settings.url, "--namespace", settings.namespace]
    finished = await ready.run(arguments, environment=os.environ, folder=Path.cwd())
    assert finished.documents, f"doctor printed no check; it exited with {finished.code}: {finished.errors}"
    return {check["name"]: check for check in finished.documents if not check["ok"]}
