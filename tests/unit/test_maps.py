"""The maps of the larger packages, which a reader starts from, leave nothing out."""

from __future__ import annotations

import pkgutil
import re
from types import ModuleType

import pytest

from pointsman import bus, core, engine


@pytest.mark.parametrize("package", [core, engine, bus])
def test_the_map_of_a_package_has_each_of_its_modules_once(package: ModuleType) -> None:
    assert package.__doc__
    mapped = package.__doc__.split("\n\n")[-1]

    assert sorted(re.findall(r"\w+(?=,|$)", mapped, re.MULTILINE)) == sorted(
        module.name for module in pkgutil.iter_modules(package.__path__)
    )
