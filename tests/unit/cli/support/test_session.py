"""Messages that a command prints before it is connected to the broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from pointsman.bus.memory.bus import MemoryBroker
from pointsman.cli.support import session as module
from pointsman.client.client import Client


@pytest.mark.parametrize(
    ("variable", "told"),
    [
        ("POINTSMAN_ACKWAIT", "pointsman: POINTSMAN_ACKWAIT is not a setting; did you mean POINTSMAN_ACK_WAIT?\n"),
        ("POINTSMAN_ACK_WAIT", ""),
        ("POINTSMAN_SERVICE_HOST_OF_SOMEBODY_ELSE", ""),
    ],
)
async def test_misspelled_setting_is_named_once_on_standard_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], variable: str, told: str
) -> None:
    @asynccontextmanager
    async def connect(**_: object) -> AsyncIterator[Client]:
        yield Client(MemoryBroker("pointsman").connect())

    monkeypatch.setattr(module, "connect", connect)
    monkeypatch.setenv(variable, "30")

    async with module.session(None, None):
        pass

    said = capsys.readouterr()
    assert (said.out, said.err) == ("", told)
