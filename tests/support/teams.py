"""The teams that Pointsman ships."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType

import pointsman_agents
from pointsman_schemas.team import Team

__all__ = ["shipped_teams"]


def shipped_teams() -> Iterator[ModuleType]:
    """Yield each module that has a team and a sample request, so `pointsman up` can run it. If a package has them, its
    modules are skipped."""
    found: list[str] = []
    for info in pkgutil.walk_packages(pointsman_agents.__path__, "pointsman_agents."):
        if any(info.name.startswith(f"{name}.") for name in found):
            continue
        module = importlib.import_module(info.name)
        if isinstance(getattr(module, "team", None), Team) and hasattr(module, "SAMPLE_REQUEST"):
            found.append(info.name)
            yield module
