"""What a setting may show of itself."""

from __future__ import annotations

import pytest

from pointsman.settings import Settings


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("nats://127.0.0.1:4222", "127.0.0.1:4222"),
        ("nats://ada:secret@a:4222,tls://b:4222", "a:4222, b:4222"),
        ("ada:secret@a:4222", "a:4222"),
    ],
)
def test_servers_are_shown_without_their_credentials(url: str, shown: str) -> None:
    assert Settings(url=url).servers == shown
