"""A process builds the validator of a model only when it first uses the model, because it needs only a few models."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

from pydantic import ConfigDict, create_model

_ALL = """
import importlib, pkgutil, pointsman_schemas, pointsman.core
from pydantic import BaseModel
for package in (pointsman_schemas, pointsman.core):
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)

def below(model):
    return {model}.union(*map(below, model.__subclasses__()))

def built():
    models = [model for model in below(BaseModel) if model.__module__.startswith("pointsman")]
    return [model.__name__ for model in models if model.__pydantic_complete__]
"""


def said(*lines: str) -> str:
    code = "\n".join((_ALL, *lines))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    return done.stdout.strip()


def test_to_import_the_contract_builds_next_to_none_of_it() -> None:
    assert (
        said("print(*sorted(built()))")
        == "Check DailyLimits Limits PlanAndExecute PlanUsage RetryPolicy ThreadPolicy Usage"
    )  # including the types of default values


def test_reading_an_event_builds_that_one_and_not_each_of_its_parts() -> None:
    read = "from pointsman_schemas.log import Commit\nbefore = built()\nCommit(number=1, entries=())"

    assert said(read, "print(*sorted(set(built()) - set(before)))") == "Commit"


def test_model_that_several_threads_use_first_is_whole_in_each() -> None:
    """From version 2.14 on, pydantic builds a model under a lock."""
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
