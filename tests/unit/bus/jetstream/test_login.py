"""The user in subjects of requests and controls is the user of the login, if the user's name is a valid token."""

from __future__ import annotations

import pytest

from pointsman.bus.jetstream.login import user_name
from pointsman.settings import Settings


@pytest.mark.parametrize(
    ("given", "user"),
    [
        ({}, "os-user"),
        ({"user": "ada"}, "ada"),
        ({"user": "ada", "password": "secret"}, "ada"),
        ({"user": "ada@example.org", "password": "secret"}, "os-user"),
        ({"url": "nats://ben:secret@127.0.0.1"}, "ben"),
        ({"url": "nats://token@127.0.0.1"}, "os-user"),
        ({"url": "nats://ben:secret@127.0.0.1", "user": "ada"}, "ada"),
    ],
    ids=str,
)
def test_user_is_that_of_the_login(monkeypatch: pytest.MonkeyPatch, given: dict[str, str], user: str) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "os user")

    assert user_name(Settings.load(**given)) == user


def test_user_without_any_name_is_anonymous(monkeypatch: pytest.MonkeyPatch) -> None:
    def nameless() -> str:
        raise KeyError("uid not found")

    monkeypatch.setattr("getpass.getuser", nameless)

    assert user_name(Settings()) == "anonymous"
