"""The commands of `pointsman grants` write files for the server and for users, and print what they did."""

from __future__ import annotations

import json
from pathlib import Path

import bcrypt
import pytest
from typer.testing import CliRunner

from pointsman.cli.app import app
from pointsman.grants.folder import GrantFolder
from pointsman.grants.jwt import read_jwt


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["grants", *arguments])
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture
def folder(tmp_path: Path) -> str:
    path = str(tmp_path / "tenant")
    run("init", path, "--namespace", "own", "--namespace", "lab", "--account", "SHOP")
    return path


def variables(folder: str, name: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in (Path(folder) / "users" / f"{name}.env").read_text().splitlines())


def test_added_user_gets_its_variables_and_the_server_the_hash(folder: str) -> None:
    added = json.loads(run("add", "caller", "ada", "--team", "crew", "--folder", folder, "--json"))

    found = variables(folder, "ada")
    text = (Path(folder) / "accounts.conf").read_text()
    (user,) = GrantFolder(Path(folder)).content.users
    assert added["files"] == [str(Path(folder) / "users" / "ada.env")]
    assert {name: found[f"POINTSMAN_{name}"] for name in ("USER", "NAMESPACE", "INBOX_PREFIX", "JETSTREAM_DOMAIN")} == {
        "USER": "ada", "NAMESPACE": "own", "INBOX_PREFIX": "_INBOX.ada", "JETSTREAM_DOMAIN": "edge",
    }  # fmt: skip
    assert user.password is not None
    assert bcrypt.checkpw(found["POINTSMAN_PASSWORD"].encode(), user.password.encode())
    assert found["POINTSMAN_PASSWORD"] not in text
    assert json.dumps(user.password) in text
    assert "SHOP_EDGE: {" in text


def test_user_of_another_namespace_has_its_subjects(folder: str) -> None:
    run("add", "supervisor", "boss", "--team", "*", "--namespace", "lab", "--folder", folder)

    assert variables(folder, "boss")["POINTSMAN_NAMESPACE"] == "lab"
    assert "POINTSMAN_JETSTREAM_DOMAIN" not in variables(folder, "boss")
    assert '"lab.log.*.*"' in (Path(folder) / "accounts.conf").read_text()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["add", "caller", "ada"], "the role caller needs --team"),
        (["add", "caller", "ada", "--team", "crew", "--action", "approve"], "choose from: cancel"),
        (["add", "observer", "eye", "--namespace", "none"], "the tenant has no namespace 'none'"),
        (["add", "caller", "a.b", "--team", "crew"], "user is 'a.b'"),
        (["rotate", "ada"], "has no user 'ada'"),
        (["rotate"], "give the name of a user, or --all"),
        (["revoke", "ada"], "has no user 'ada'"),
        (["push"], "reload the server instead"),
    ],
)
def test_mistake_changes_nothing_and_is_named(arguments: list[str], reason: str, folder: str) -> None:
    before = (Path(folder) / "accounts.conf").read_text()

    result = CliRunner().invoke(app, ["grants", *arguments, "--folder", folder])

    assert result.exit_code in (2, 3)
    assert reason in result.output
    assert (Path(folder) / "accounts.conf").read_text() == before


def test_name_is_given_once(folder: str) -> None:
    run("add", "observer", "eye", "--folder", folder)

    assert "the user 'eye' exists" in run("add", "observer", "eye", "--folder", folder, code=2)
    assert "already has grants" in run("init", folder, code=2)


def test_rotation_changes_the_secret_and_revocation_removes_the_user(folder: str) -> None:
    run("add", "observer", "eye", "--folder", folder)
    old = variables(folder, "eye")
    run("rotate", "eye", "--folder", folder)
    new = variables(folder, "eye")
    listed = run("list", "--folder", folder)
    run("revoke", "eye", "--folder", folder)

    assert old.keys() == new.keys()
    assert old["POINTSMAN_PASSWORD"] != new["POINTSMAN_PASSWORD"]
    assert listed == "eye  observer  own\n"
    assert run("list", "--folder", folder) == ""
    assert not (Path(folder) / "users" / "eye.env").exists()
    assert '"eye"' not in (Path(folder) / "accounts.conf").read_text()


def test_rotation_of_all_replaces_the_signing_keys(tmp_path: Path) -> None:
    path = tmp_path / "tenant"
    run("init", str(path), "--jwt")
    run("add", "worker", "w", "--agent", "echo", "--folder", str(path))
    before = GrantFolder(path).content
    run("rotate", "--all", "--folder", str(path))
    after = GrantFolder(path).content

    jwt = (path / "users" / "w.creds").read_text().splitlines()[1]
    claims = read_jwt(jwt)
    assert before.scopes[0].public_key != after.scopes[0].public_key == claims["iss"]
    assert [*after.revoked] == [before.users[0].public_key]
    assert claims["sub"] == after.users[0].public_key
    assert claims["nats"]["tags"] == ["agent:echo"]
    assert "pub" not in claims["nats"]  # the signing key's scope has the rights


def test_show_prints_rights_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    text = run("show", "caller", "ada", "--team", "crew", "--namespace", "own")
    content = json.loads(run("show", "caller", "ada", "--team", "crew", "--json"))

    assert '"own.request.crew.ada"' in text
    assert content["inbox_prefix"] == "_INBOX.ada"
    assert "pointsman.request.crew.ada" in content["publish"]
    assert [*tmp_path.iterdir()] == []


def test_key_is_printed_with_its_hash() -> None:
    made = json.loads(run("key", "--json"))

    assert made["key"].startswith("pmk_")
    assert len(made["sha256"]) == 64


def test_existing_link_is_replaced_and_not_followed(folder: str, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("keep")
    (Path(folder) / "users").mkdir(exist_ok=True)
    (Path(folder) / "users" / "eye.env").symlink_to(victim)

    run("add", "observer", "eye", "--folder", folder)

    assert victim.read_text() == "keep"
    assert variables(folder, "eye")["POINTSMAN_USER"] == "eye"
