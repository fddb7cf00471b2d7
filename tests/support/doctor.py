"""What `pointsman doctor` finds."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from pointsman.settings import Settings

__all__ = ["doctor"]


async def doctor(settings: Settings) -> dict[str, Any]:
    """Its checks that are bad, by name. A process of its own: what it sets for its log lines is not for those here."""
    arguments = ["doctor", "--json", "--url", settings.url, "--namespace", settings.namespace]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pointsman", *arguments), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    checks = [json.loads(line) for line in output.splitlines()]
    return {check["name"]: check for check in checks if not check["ok"]}
