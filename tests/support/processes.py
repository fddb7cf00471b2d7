"""Run a system as operators do: each part is a process `python -m pointsman ...`. Tests can read its log lines.

async with System(tmp_path, settings) as system:
    await gather(system.supervisor("team.py"), system.worker("agents.py"))
    outcome = await system.ask("crew", "hello")
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, TypeVar

from pointsman.bus.jetstream.bus import connect
from pointsman.client.client import Client
from pointsman.settings import Settings
from pointsman_schemas.events import Outcome
from support import ready
from support.ready import Finished, Ready
from support.waiting import until

__all__ = ["Finished", "Service", "System", "wait_for"]

T = TypeVar("T")

_READY_TIMEOUT_S = 45.0  # seconds; one process starts in 1, ten on two busy cores start in 15
_LOG_TAIL_CHARS = 3000  # characters at the end of a log that a failure message contains


async def wait_for(look: Callable[[], Awaitable[T]], what: str, *, seconds: float = 20.0) -> T:
    """Return the first true value of `look()`. Raise `AssertionError` with the text `what` after `seconds`."""
    try:
        value: T = await until(look, seconds=seconds)
    except TimeoutError:
        raise AssertionError(f"no {what} within {seconds:g} s") from None
    return value


class Service:
    """A process that keeps running, and its log."""

    def __init__(self, name: str, process: asyncio.subprocess.Process | Ready, log: Path) -> None:
        self.name = name
        self._process = process
        self._log = log

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    @property
    def text(self) -> str:
        return self._log.read_text(errors="replace")

    def lines(self, event: str | None = None, **fields: object) -> list[dict[str, Any]]:
        """Return the log lines so far that have `event` and these fields. Every line of the log must be JSON."""
        every = [json.loads(line) for line in self.text.splitlines(keepends=True) if line.endswith("\n")]
        wanted = {**fields, **({"event": event} if event else {})}
        return [line for line in every if all(line.get(name) == value for name, value in wanted.items())]

    async def logged(self, event: str, *, seconds: float = _READY_TIMEOUT_S, **fields: object) -> dict[str, Any]:
        """Wait until the log has a line with `event` and these fields, and return the first such line."""

        async def look() -> list[dict[str, Any]]:
            lines = self.lines(event, **fields) if self.alive else []
            if not lines and not self.alive:
                raise AssertionError(
                    f"{self.name} ended with {self._process.returncode}:\n{self.text[-_LOG_TAIL_CHARS:]}"
                )
            return lines

        return (await wait_for(look, f"line {event} {fields or ''} from {self.name}", seconds=seconds))[0]

    async def ended(self) -> int:
        """Wait until the process ends. Return the exit code, or minus the signal's number after a kill."""
        return await self._process.wait()

    async def kill(self) -> None:
        """Send SIGKILL."""
        if self.alive:
            self._process.kill()
        await self._process.wait()

    async def stop(self, *, seconds: float = 15.0) -> int:
        """Send SIGTERM and return the exit code. Kill the process after `seconds` and raise `AssertionError`."""
        if self.alive:
            self._process.send_signal(signal.SIGTERM)
        try:
            return await asyncio.wait_for(self._process.wait(), seconds)
        except TimeoutError:
            await self.kill()
            raise AssertionError(
                f"{self.name} did not end within {seconds:g} s:\n{self.text[-_LOG_TAIL_CHARS:]}"
            ) from None


class System:
    """Processes on the broker of `settings`, with logs in `folder`, and a client here. All stop when the block ends.

    The processes get this process's environment without the variables of models, telemetry and Pointsman, plus the
    variables of `environment`.
    """

    def __init__(self, folder: Path, settings: Settings, **environment: str) -> None:
        self.folder = folder
        self.settings = settings
        chosen = settings.model_dump(exclude_unset=True)
        own = ("POINTSMAN_", "OTEL_", "ANTHROPIC_", "OPENAI_")
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(own)},
            **{f"POINTSMAN_{name.upper()}": str(value) for name, value in chosen.items()},
            "POINTSMAN_MODEL": "offline",
            "POINTSMAN_LOG_FORMAT": "json",
            "PYTHONWARNINGS": "error",
            **environment,
        }
        self.services: list[Service] = []
        self._numbers = itertools.count(1)
        self.client: Client

    async def __aenter__(self) -> System:
        self.folder.mkdir(parents=True, exist_ok=True)
        bus = await connect(self.settings, name="test", wait=20.0)
        await bus.set_up()
        self.client = Client(bus, namespace=self.settings.namespace)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            for service in self.services:
                sys.stdout.write(f"\n--- {service.name} ({service.pid})\n{service.text[-_LOG_TAIL_CHARS:]}\n")
        await asyncio.gather(*(service.kill() for service in self.services))
        await self.client.bus.close()

    async def supervisor(self, target: str) -> Service:
        """Start a supervisor and wait for its consumers."""
        service = await self.start("supervisor", target)
        await service.logged("supervisor_started")
        return service

    async def worker(self, *targets: str) -> Service:
        """Start a worker and wait for its cards."""
        service = await self.start("worker", *targets)
        instance = (await service.logged("worker_started"))["instance"]

        async def announced() -> bool:
            return any(card.instance == instance for card in await self.client.operations.agents())

        await wait_for(announced, f"card of {targets}")
        return service

    async def start(self, *arguments: str) -> Service:
        """Start a process that runs `pointsman ARGUMENTS` and ends with this process."""
        name = "-".join(argument.rpartition("/")[2].removeprefix("pointsman_agents.") for argument in arguments)
        log = self.folder / f"{next(self._numbers):02}-{name}.log"
        with log.open("wb") as said:
            process = await self._begin(["-m", "pointsman", *arguments, "--with-parent"], said)
        service = Service(name, process, log)
        self.services.append(service)
        return service

    async def _begin(self, arguments: Sequence[str], said: IO[bytes]) -> asyncio.subprocess.Process | Ready:
        """A fault point is set during imports, so a process with a fault needs a new interpreter."""
        if "POINTSMAN_FAULT" not in self.environment:
            return await ready.start(arguments, said, said, environment=self.environment, folder=self.folder)
        return await asyncio.create_subprocess_exec(
            *(sys.executable, *arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=said,
            stderr=said,
            env=self.environment,
            cwd=self.folder,
            start_new_session=True,
        )

    async def command(self, *arguments: str, seconds: float = 40.0) -> Finished:
        """Run `pointsman ARGUMENTS` until it exits."""
        return await ready.run(
            ["-m", "pointsman", *arguments], environment=self.environment, folder=self.folder, seconds=seconds
        )

    async def ask(self, team: str, request: str | Mapping[str, Any], *, seconds: float = 30.0) -> Outcome:
        """Submit a request and return the outcome of its workflow."""
        workflow = await self.client.submit(team, request)
        try:
            return await workflow.outcome(seconds)
        except TimeoutError:
            raise AssertionError(f"workflow {workflow.id} has no outcome after {seconds:g} s") from None

    def write(self, name: str, text: str) -> str:
        """Write a file in the folder of the processes and return its path."""
        path = self.folder / name
        path.write_text(text)
        return str(path)
