"""Run the suites that the arguments name. The default is `mcp` and `agui`, at the same time.

The suite `typescript` needs no broker, and its packages are large, so it runs alone and only by its name.
"""

from __future__ import annotations

import asyncio
import os
import sys

from pointsman.bus.embedded_server import EmbeddedBroker
from pointsman.settings import Settings
from pointsman.telemetry import logs
from support.conformance import agui, mcp, typescript
from support.conformance.npm import InstallError, install

_SUITES = {"mcp": mcp.run, "agui": agui.run}


async def _run(suites: list[str], environment: dict[str, str]) -> int:
    """Return the number of suites with unexpected results."""
    broker = EmbeddedBroker()
    await broker.start()
    try:
        settings = {name: Settings(url=broker.url, namespace=name) for name in suites}
        return sum(await asyncio.gather(*(_SUITES[name](settings[name], environment) for name in suites)))
    finally:
        await broker.stop()


def main() -> int:
    """Install the packages and run the suites.

    Returns:
        The exit code. If the packages cannot be installed, the code is 0; in CI, `POINTSMAN_NEEDS_NPM` makes it 1.
    """
    generates = sys.argv[1:] == ["typescript"]
    try:
        environment = install(typescript.MANIFESTS, typescript.PACKAGES) if generates else install()
    except InstallError as error:
        required = bool(os.environ.get("POINTSMAN_NEEDS_NPM"))
        sys.stdout.write(f"{'FAILED' if required else 'SKIPPED, nothing was tested'}: {error}\n")
        return int(required)
    if generates:
        return int(typescript.run(environment))
    logs.configure(Settings(log_level="error"))  # the suites make attempts fail on purpose
    return 1 if asyncio.run(_run(sys.argv[1:] or [*_SUITES], environment)) else 0


if __name__ == "__main__":
    sys.exit(main())
