"""The docstring of each package names all of its modules and folders, because readers start there."""

from __future__ import annotations

import pkgutil
import re
from importlib import import_module

import pytest

PACKAGES = (
    "authoring", "batches", "bus", "bus.jetstream", "bus.memory", "client", "core", "core.questions", "core.attempts",
    "core.budget", "core.completion", "core.model", "core.planning", "core.replay", "core.strategies", "core.tasks",
    "core.views", "engine", "engine.log", "engine.operations", "engine.process", "engine.supervisor", "engine.worker",
    "evaluation", "gateway", "gateway.openai", "grants", "http", "index", "llm.offline", "ports", "telemetry.fast",
    "util", "web.projections", "webhooks",
)  # fmt: skip


@pytest.mark.parametrize("name", PACKAGES)
def test_docstring_names_each_module_once(name: str) -> None:
    package = import_module(f"pointsman.{name}")
    assert package.__doc__
    modules = [module.name for module in pkgutil.iter_modules(package.__path__)]

    listed = package.__doc__.split("\n\n")[-1]

    assert {module: len(re.findall(rf"\b{module}\b", listed)) for module in modules} == dict.fromkeys(modules, 1)
