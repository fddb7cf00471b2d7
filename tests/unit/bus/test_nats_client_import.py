"""Half of nats-py's code is for a JetStream client that ours does not use, and is not loaded until somebody does."""

from __future__ import annotations

import subprocess
import sys

import pytest

_OURS = "from pointsman.bus.jetstream.client import NatsClient"
_LOADED = "print(*(name for name in sys.modules if name.startswith('nats.js.')))"
_COPIES = """print([
    (name, each)
    for name, module in list(sys.modules.items()) if name.startswith("nats.js")
    for each in vars(module).values() if isinstance(each, type) and each.__module__.startswith("nats.js")
    if getattr(sys.modules[each.__module__], each.__name__) is not each
])"""
"""The classes that a module of it holds and that are not those which others find: it was loaded twice."""


def said(*lines: str) -> str:
    code = "\n".join(("import sys", *lines))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    return done.stdout.strip()


def test_nats_is_imported_without_its_jetstream_client() -> None:
    assert said(_OURS, _LOADED) == ""


def test_who_asks_for_it_has_it() -> None:
    assert said(_OURS, "print(type(NatsClient().jetstream()).__module__)") == "nats.js.client"


@pytest.mark.parametrize("part", ["api", "client", "errors"])
def test_it_is_whole_and_loaded_once_whichever_part_of_it_is_imported_first(part: str) -> None:
    assert said(_OURS, f"import nats.js.{part}", "print(nats.js.JetStreamContext.__name__)", _COPIES) == (
        "JetStreamContext\n[]"
    )


def test_what_it_lacks_is_missing() -> None:
    assert said(_OURS, "import nats.js", "print(hasattr(nats.js, 'nothing'), hasattr(nats.js, 'nothing'))") == (
        "False False"
    )


def test_a_process_that_imported_nats_before_keeps_what_it_has() -> None:
    assert "nats.js.client" in said("import nats", "before = nats.js", _OURS, "assert nats.js is before", _LOADED)
