"""A failed start of the server is reported in one sentence."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from pointsman.bus.embedded_server import EmbeddedBroker
from pointsman.errors import ConfigurationError


async def test_start_failure_is_reported_without_the_rest_of_the_server_log(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        number = listener.getsockname()[1]

        with pytest.raises(ConfigurationError) as caught:
            await EmbeddedBroker(tmp_path, port=number).start()

    assert str(caught.value).startswith(f"nats-server ended with code 1: Error listening on port: 127.0.0.1:{number}, ")
    assert "|" not in str(caught.value)
