"""`up` and `demo` refuse invalid set-ups before the start, and report ended children."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pointsman import app
from pointsman.cli.commands import up
from pointsman.cli.support import local_system
from pointsman.cli.support.topology import topology_of
from pointsman.errors import ConfigurationError
from pointsman.settings import Settings
from pointsman.util.child_processes import exit_message


def test_uncreatable_folder_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    ended = subprocess.run(
        [sys.executable, "-m", "pointsman", "up", "--dir", str(tmp_path / "file" / "below")],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip

    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
    assert "cannot be created" in ended.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such file lock")
def test_second_system_on_one_folder_is_refused_until_the_first_ends(tmp_path: Path) -> None:
    with (
        local_system.exclusive_lock(tmp_path),
        pytest.raises(ConfigurationError, match="stop it, or give --dir another"),
        local_system.exclusive_lock(tmp_path),
    ):
        pass

    with local_system.exclusive_lock(tmp_path):
        pass


def test_port_in_use_is_taken_and_one_with_lingering_connections_is_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        taken = not up._is_port_free(port)
        with socket.create_connection(("127.0.0.1", port)) as client:
            accepted, _ = server.accept()
            accepted.close()  # the side that closes first keeps the port in TIME-WAIT
            assert client.recv(1) == b""

    assert taken
    assert up._is_port_free(port)


def test_killed_child_is_reported_as_such_without_its_log(tmp_path: Path) -> None:
    log = tmp_path / "billing.log"
    log.write_text("started\nno such model\n")

    assert str(exit_message("billing", -9, log)) == f"the process billing was killed by signal 9; its log is {log}"
    assert str(exit_message("billing", 1, log)) == (
        f"the process billing ended with code 1: no such model; its log is {log}"
    )


def test_ctrl_c_during_the_imports_is_no_traceback() -> None:
    interrupted = (
        "import sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'pointsman.cli': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "from pointsman.__main__ import main\n"
        "main()\n"
    )

    ended = subprocess.run([sys.executable, "-c", interrupted], capture_output=True, text=True, timeout=60)

    assert (ended.returncode, ended.stderr) == (130, "pointsman: interrupted\n")


@pytest.mark.skipif(os.name != "posix", reason="the test sends POSIX signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_background_child_of_a_script_ends_on_an_ignored_signal(number: int) -> None:
    async def main() -> None:
        os.kill(os.getpid(), number)
        async with asyncio.timeout(10):
            await asyncio.Event().wait()

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(KeyboardInterrupt):
            app.run(main())
    finally:
        signal.signal(signal.SIGINT, before)


def test_file_with_several_teams_uses_the_one_named_team(capsys: pytest.CaptureFixture[str]) -> None:
    cast = topology_of("pointsman_agents.service_desk")

    assert cast.team.name == "service-desk"
    assert set(cast.workers) == {"agents", "planner", "synthesizer"}
    assert cast.agents == {"refund", "subscriptions", "api", "integration", "planner", "synthesizer"}
    assert capsys.readouterr() == ("", "")


async def test_own_broker_is_not_started_for_a_team_without_runnable_agents(
    tmp_path: Path,
) -> None:
    file = tmp_path / "depot.py"
    file.write_text("from pointsman import Team\nteam = Team(name='depot', agents=('buyer', 'stock'))\n")

    with pytest.raises(ConfigurationError, match=r"depot.py does not define buyer, stock, .* import the agents in"):
        async with local_system.local_system(str(file), Settings(), tmp_path / "home", team=True):
            pass
    assert not (tmp_path / "home").exists()


def test_several_teams_without_one_named_team_are_distinguished_by_variable(tmp_path: Path) -> None:
    (tmp_path / "two.py").write_text("from pointsman import Team\na = Team(name='x')\nb = Team(name='y')\n")

    with pytest.raises(ConfigurationError, match=r"defines 2 teams: x, y; call the variable of the main team `team`"):
        app.load_team(str(tmp_path / "two.py"))
    assert app.load_team(f"{tmp_path / 'two.py'}:b").name == "y"
    assert [team.name for team in app.load_teams(str(tmp_path / "two.py"))] == ["x", "y"]
