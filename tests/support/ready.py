"""Start processes that run `python -m pointsman ...` or a file, by forking an interpreter that has imported Pointsman.
A fork needs a quarter of the CPU time of a new interpreter, and the tests start hundreds of processes.

The tests of the demo, the command line and the crash points start new interpreters instead.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

__all__ = ["Finished", "Ready", "run", "start"]


@dataclass(frozen=True, slots=True)
class Finished:
    """The output and the exit code of a command."""

    code: int
    output: str
    errors: str

    @property
    def documents(self) -> list[Any]:
        """The JSON documents on standard output, one in each line."""
        return [json.loads(line) for line in self.output.splitlines()]


class Ready:
    """A started process, with the part of `asyncio.subprocess.Process` that the tests use."""

    def __init__(self, pid: int, told: asyncio.StreamReader, asking: asyncio.StreamWriter, stdin: IO[bytes]) -> None:
        self.pid = pid
        self.stdin = stdin
        self.returncode: int | None = None
        self._end = asyncio.create_task(self._note_end(told, asking))

    async def _note_end(self, told: asyncio.StreamReader, asking: asyncio.StreamWriter) -> int:
        self.returncode = await _number(told)
        asking.close()
        self.stdin.close()
        return self.returncode

    async def wait(self) -> int:
        return await asyncio.shield(self._end)

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with suppress(ProcessLookupError):  # the process has ended, but the exit code has not arrived yet
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


async def start(
    arguments: Sequence[str], output: IO[bytes], errors: IO[bytes], *, environment: Mapping[str, str], folder: Path
) -> Ready:
    """Start `python ARGUMENTS` in a new session. The arguments begin with `-m` and a module, or with a file. Standard
    input of the process is closed when this process ends."""
    ours, its = socket.socketpair()
    read, held = os.pipe()
    socket.send_fds(_interpreter(), [b"."], [its.fileno(), read, output.fileno(), errors.fileno()])
    its.close()
    os.close(read)
    told, asking = await asyncio.open_connection(sock=ours)
    asking.write(json.dumps([list(arguments), dict(environment), str(folder)]).encode() + b"\n")
    return Ready(await _number(told), told, asking, os.fdopen(held, "wb"))


async def run(
    arguments: Sequence[str], *, environment: Mapping[str, str], folder: Path, seconds: float = 40.0
) -> Finished:
    """Run `python ARGUMENTS` until it exits, without input. After `seconds`, kill it and raise `TimeoutError`."""
    with TemporaryFile() as output, TemporaryFile() as errors:
        process = await start(arguments, output, errors, environment=environment, folder=folder)
        process.stdin.close()
        try:
            code = await asyncio.wait_for(process.wait(), seconds)
        finally:
            process.kill()
            await process.wait()
        output.seek(0)
        errors.seek(0)
        return Finished(code, output.read().decode(), errors.read().decode())


async def _number(told: asyncio.StreamReader) -> int:
    line = await told.readline()
    assert line, "the forked interpreter closed its connection; look for its error on standard error"
    return int(line)


@functools.cache
def _interpreter() -> socket.socket:
    """Start the interpreter to fork, and return its control socket. The interpreter ends with this process."""
    ours, its = socket.socketpair()
    with its:
        process = subprocess.Popen(
            [sys.executable, __file__, str(its.fileno())], pass_fds=[its.fileno()], stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def _wait_for_requests(control: int) -> None:
    """Fork a process for each request of `start`. Return in the child after its run, and here at end of input."""
    import pointsman.bus.jetstream.bus  # noqa: F401
    import pointsman.cli.app  # noqa: F401
    import pointsman.cli.commands.serve  # noqa: F401
    import pointsman.client.client  # noqa: F401
    import pointsman.engine.process.discovery  # noqa: F401
    import pointsman.engine.process.signals  # noqa: F401
    import pointsman.engine.supervisor.engine  # noqa: F401
    import pointsman.engine.worker.engine  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # reap the processes that report exit codes
    with socket.socket(fileno=control) as requests:
        while True:
            asked, files, _, _ = socket.recv_fds(requests, 1, 4)
            if not asked:
                return
            if os.fork() == 0:
                break
            for file in files:
                os.close(file)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    told, *standard = files
    with socket.socket(fileno=told) as telling, telling.makefile("rw") as words:
        arguments, environment, folder = json.loads(words.readline())
        if pid := os.fork():
            _tell(words, standard, pid)
    _become(arguments, environment, folder, standard)


def _tell(words: IO[str], standard: Sequence[int], pid: int) -> None:
    """Send the process id and the exit code."""
    for file in standard:
        os.close(file)
    words.write(f"{pid}\n")
    words.flush()
    _, status = os.waitpid(pid, 0)
    words.write(f"{os.waitstatus_to_exitcode(status)}\n")
    words.flush()
    os._exit(0)


def _become(arguments: Sequence[str], environment: Mapping[str, str], folder: str, standard: Sequence[int]) -> None:
    os.setsid()
    os.chdir(folder)
    for number, (file, name) in enumerate(zip(standard, ("stdin", "stdout", "stderr"), strict=True)):
        os.dup2(file, number)
        os.close(file)
        was = getattr(sys, name)  # make a new stream: the old stream remembers if its file was seekable
        stream = open(number, "w" if number else "r", encoding=was.encoding, errors=was.errors, closefd=False)  # noqa: SIM115
        stream.reconfigure(line_buffering=was.line_buffering, write_through=was.write_through)
        setattr(sys, name, stream)
    os.environ.clear()
    os.environ.update(environment)
    if environment.get("PYTHONWARNINGS") == "error":
        warnings.simplefilter("error")
    places = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [folder, *(place for place in places if place and place not in sys.path)]
    if arguments[0] == "-m":
        sys.argv[1:] = arguments[2:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv[:] = arguments
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    del sys.path[0]  # Python added the folder of this file
    _wait_for_requests(int(sys.argv[1]))
