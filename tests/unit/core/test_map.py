"""The map of the core, which a reader starts from, leaves nothing out."""

from __future__ import annotations

import pkgutil
import re

from pointsman import core


def test_the_map_of_the_core_has_each_module_once() -> None:
    assert core.__doc__
    mapped = core.__doc__.split("\n\n")[-1]

    assert sorted(re.findall(r"\w+(?=,|$)", mapped, re.MULTILINE)) == sorted(
        module.name for module in pkgutil.iter_modules(core.__path__)
    )
