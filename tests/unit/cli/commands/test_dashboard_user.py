"""The command `dashboard-user` shows a token once and stores only its digest."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from pointsman.cli.commands.dashboard_user import dashboard_user
from pointsman.errors import ConfigurationError, InvalidTokenError
from pointsman.web.users import Users


def test_a_user_is_added_changed_and_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "users.json"
    dashboard_user("anna", "approve", file, json=True)
    first = json.loads(capsys.readouterr().out)
    dashboard_user("berta", "look", file)
    dashboard_user("anna", "operate", file, json=True)
    second = json.loads(capsys.readouterr().out.splitlines()[-1])
    users = Users.load(None, str(file))
    dashboard_user("berta", file=file, remove=True)

    assert first["token"] != second["token"]
    assert users.of_token(first["token"]) is None
    found = users.of_token(second["token"])
    assert found is not None
    assert (found.name, found.role) == ("anna", "operate")
    assert second["token"] not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(json.loads(file.read_text())["users"]) == ["anna"]


def test_the_setting_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POINTSMAN_DASHBOARD_USERS", str(tmp_path / "users.json"))
    dashboard_user("anna")

    assert "anna" in (tmp_path / "users.json").read_text()
    assert "look" in capsys.readouterr().out


def test_wrong_use_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text("{}")

    with pytest.raises(ConfigurationError, match="--file"):
        dashboard_user("anna")
    with pytest.raises(ConfigurationError, match="no user 'anna'"):
        dashboard_user("anna", file=tmp_path / "none.json", remove=True)
    with pytest.raises(ConfigurationError, match="is not a file of users"):
        dashboard_user("anna", file=broken)
    with pytest.raises(ConfigurationError, match="dashboard-user"):
        Users.load(None, str(broken))
    with pytest.raises(InvalidTokenError, match="the user"):
        dashboard_user("a b", file=tmp_path / "users.json")
