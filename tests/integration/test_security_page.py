"""Every block of docs/security.md runs. The commands create users, and nats-server accepts the configuration."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from support.cluster import nats_server
from support.docs import ROOT, blocks_of
from typer.testing import CliRunner

from pointsman.cli.app import app
from pointsman.grants.folder import GrantFolder
from pointsman.grants.policy import Policy

PAGE = (ROOT / "docs" / "security.md").read_text()


def test_every_block_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ran = 0
    for language, body in blocks_of(PAGE):
        if language == "sh":
            for line in body.splitlines():
                words = shlex.split(line)
                assert words[0] == "pointsman"
                result = CliRunner().invoke(app, words[1:])
                assert result.exit_code == 0, f"{line}\n{result.output}"
        elif language == "conf":
            check_server_config(tmp_path, body)
            check_server_config(tmp_path, body.replace("grants/accounts.conf", "tenant/operator.conf"), after="--jwt")
        else:
            assert language == "toml"
            (tmp_path / "policy.toml").write_text(body)
            Policy.load(tmp_path / "policy.toml")
        ran += 1

    assert ran == 5
    assert [user.name for user in GrantFolder(tmp_path / "grants").content.users] == [
        "builder",
        "boss",
        "monitor",
        "billing-1",
    ]


def check_server_config(folder: Path, body: str, *, after: str = "") -> None:
    """Check the configuration with nats-server. For JWTs, check only after the block that creates the JWTs has run."""
    if after and not (folder / "tenant").exists():
        CliRunner().invoke(app, ["grants", "init", str(folder / "other"), after])
        body = body.replace("tenant/", "other/")
    (folder / "nats.conf").write_text(re.sub(r"^listen: .*$", "listen: 127.0.0.1:-1", body, flags=re.MULTILINE))
    checked = subprocess.run(
        [nats_server(), "-t", "-c", "nats.conf"], cwd=folder, capture_output=True, text=True, timeout=30, check=False
    )
    assert checked.returncode == 0, checked.stderr


def test_inline_commands_of_the_page_are_commands(tmp_path: Path) -> None:
    """Check that the commands in the text accept their options."""
    commands = re.findall(r"`pointsman ((?:grants|doctor|callout)[^`]*)`", PAGE)
    helped = [re.sub(r" (?:[A-Z]+|[a-z]+\.toml).*$", "", each).split() for each in commands]

    assert len(commands) > 5
    for words in helped:
        options = [word for word in words if word.startswith("--")]
        group = words[:2] if words[0] == "grants" and len(words) > 1 else words[:1]
        text = CliRunner().invoke(app, [*group, "--help"]).output
        assert [option for option in options if option not in text] == [], words
