"""What a process loads until it connects is what it needs: counted, for to import is nearly all of its start."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from pydantic import ConfigDict, create_model

AGENT = """
from pointsman import agent

@agent(name="echo", description="Says it again")
async def echo(text: str) -> str:
    return text
"""

TEAM = """
from pointsman import Team

team = Team(name="desk", agents=("echo",))
"""

UNTIL_IT_CONNECTS = """
import json, os, sys
from pointsman.bus.jetstream import bus as jetstream

async def connect(*args, **kwargs):
    raise SystemExit

jetstream.connect = connect
from pointsman.__main__ import main

try:
    main()
except SystemExit:
    pass

from pydantic import BaseModel

def below(model):
    return {model}.union(*map(below, model.__subclasses__()))

models = [model for model in below(BaseModel) if model.__module__.startswith("pointsman")]
installed = {name.split(".")[0] for name, module in sys.modules.items() if "site-packages" in str(getattr(module, "__file__", ""))}
print(json.dumps({
    "modules": sorted(sys.modules),
    "installed": sorted(installed),
    "built": sorted(model.__name__ for model in models if model.__pydantic_complete__),
}))
"""  # noqa: E501

NEEDED = {
    "annotated_types", "jiter", "nats", "opentelemetry", "pydantic", "pydantic_core", "structlog", "typing_extensions",
    "typing_inspection", "uvloop",
}  # fmt: skip
TRIED = {"_distutils_hack", "aiohttp", "better_exceptions", "colorama", "greenlet", "fast_mail_parser"}
"""Packages that those use where somebody installed them, and what installers leave behind."""


def loaded(command: str, target: Path) -> dict[str, Any]:
    code = [sys.executable, "-c", UNTIL_IT_CONNECTS, command, str(target)]
    done = subprocess.run(code, capture_output=True, text=True, timeout=30, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    target = tmp_path_factory.mktemp("worker") / "echo.py"
    target.write_text(AGENT)
    return loaded("worker", target)


@pytest.fixture(scope="module")
def supervisor(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    target = tmp_path_factory.mktemp("supervisor") / "desk.py"
    target.write_text(TEAM)
    return loaded("supervisor", target)


def test_a_worker_without_a_model_loads_no_package_but_these(worker: dict[str, Any]) -> None:
    assert set(worker["installed"]) - TRIED <= NEEDED


def test_a_supervisor_loads_no_package_but_these(supervisor: dict[str, Any]) -> None:
    assert set(supervisor["installed"]) - TRIED <= NEEDED


def test_a_worker_knows_nothing_of_plans_logs_teams_and_models(worker: dict[str, Any]) -> None:
    others = {
        "pointsman.client.client", "pointsman.cli.declared", "pointsman.core.decide", "pointsman.core.model.state",
        "pointsman.llm.factory", "pointsman.authoring.llm_agent", "pointsman.engine.supervisor.engine",
        "pointsman.web", "pointsman_schemas.log", "pointsman_schemas.plan", "pointsman_schemas.role_io",
        "pointsman_schemas.team",
    }  # fmt: skip

    assert not others & set(worker["modules"])


def test_neither_loads_the_parts_of_packages_that_are_not_used(
    worker: dict[str, Any], supervisor: dict[str, Any]
) -> None:
    parts = {"nats.js.api", "nats.js.client", "opentelemetry.sdk", "multiprocessing", "concurrent.futures.process"}

    assert not parts & {*worker["modules"], *supervisor["modules"]}


def test_few_models_are_built_until_a_process_connects(worker: dict[str, Any], supervisor: dict[str, Any]) -> None:
    assert worker["built"] == ["AgentCard", "Settings", "Usage"]
    assert supervisor["built"] == ["Check", "Limits", "Planned", "Settings", "Supervisor", "Team", "Usage"]


def test_a_process_loads_no_more_modules_than_it_did(worker: dict[str, Any], supervisor: dict[str, Any]) -> None:
    """On Python 3.11 a worker has 443 and a supervisor 508. Where this fails, look at what brought the others along:
    `python -X importtime`."""
    assert len(worker["modules"]) <= 450
    assert len(supervisor["modules"]) <= 515


def test_a_model_that_several_threads_use_first_is_whole_in_each() -> None:
    """Before 2.14 pydantic built it without a lock, and some found it half built."""
    failed: list[BaseException] = []

    def use(model: Any, start: threading.Barrier) -> None:
        start.wait()
        try:
            for _ in range(20):
                assert model(text="x").model_dump_json() == '{"text":"x"}'
        except BaseException as error:
            failed.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(30):
            model = create_model("Shared", __config__=ConfigDict(defer_build=True), text=(str, ...))
            start = threading.Barrier(6)
            threads = [threading.Thread(target=use, args=(model, start)) for _ in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        sys.setswitchinterval(before)

    assert failed == []
