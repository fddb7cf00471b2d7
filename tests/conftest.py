"""Fixtures for all tests."""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Iterator
from typing import Final
from zlib import crc32

import pytest
import structlog
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from support.broker import broker, bus, namespace, own_broker, settings

from pointsman.telemetry import logs
from pointsman.util import scrubber

__all__ = [
    "broker",
    "bus",
    "logging_as_it_was",
    "namespace",
    "no_secrets_in_use",
    "own_broker",
    "secrets_as_they_were",
    "settings",
]

# No deadlines: a busy machine must not make a test fail. Tests assert durations where durations matter. The examples
# are the same in every run, so a change that breaks nothing fails no test. `make explore` draws other examples.
hypothesis_settings.register_profile("random", deadline=None, suppress_health_check=[HealthCheck.too_slow])
hypothesis_settings.register_profile("same", hypothesis_settings.get_profile("random"), derandomize=True)
hypothesis_settings.load_profile("same")

_PARTS: Final = 12  # divisible by 2, 3 and 4: each of that many workers gets the same number of parts

gc.disable()  # imported and collected objects are not garbage

_OF_THIS_MACHINE: Final = re.compile(
    r"(?i)COLUMNS|LINES|(NO|FORCE)_COLOR|GITHUB_ACTIONS|PYTHON(IOENCODING|UTF8|WARNINGS)|\w+_PROXY|(NATS|OTEL)_\w+"
    r"|(OPENAI|ANTHROPIC)_(?!API_KEY$)\w+|POINTSMAN_(?!(CASES|REAL_MODEL|NEEDS_\w+)$)\w+"
)
"""Variables that change outputs, addresses or settings. The keys of providers stay, because `real_model` tests need
them."""

for name in filter(_OF_THIS_MACHINE.fullmatch, list(os.environ)):
    del os.environ[name]
os.environ["TERM"] = "xterm"  # rich redraws no line in a dumb terminal

logs.CACHE_LOGGERS = False
logs._install("warning")  # as in a process before `setup`, but without caching of loggers


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort files into parts by name, so that each worker has some tests that wait for processes. The longest tests of a
    part run first, so that no worker ends late."""

    def place(item: pytest.Item) -> tuple[int, float]:
        file = crc32(item.path.relative_to(item.config.rootpath).as_posix().encode())
        return file % _PARTS, -max((mark.args[0] for mark in item.iter_markers("timeout")), default=0)

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """Exclude objects that exist before all tests from garbage collection."""
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)  # the default of 700 costs 4 % of the CPU time of the tests
    gc.enable()


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """Undo a test's changes of the logging configuration."""
    before, processors = structlog.get_config(), list(logs._processors)
    yield
    logs._processors[:] = processors
    structlog.configure(**before)


@pytest.fixture(autouse=True)
def secrets_as_they_were() -> Iterator[None]:
    """Hide the secrets of a test in this test only. A secret may be a word that the texts of other tests contain."""
    before, pattern = dict(scrubber._in_use), scrubber._IN_USE
    yield
    scrubber._in_use.clear()
    scrubber._in_use.update(before)
    scrubber._IN_USE = pattern


@pytest.fixture
def no_secrets_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty the registry of secret values that logs must hide."""
    monkeypatch.setattr(scrubber, "_in_use", {})
    monkeypatch.setattr(scrubber, "_IN_USE", None)
