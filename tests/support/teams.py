"""The teams that ship, and their agents with other models."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import pointsman_agents
from pointsman.llm_agent import LLMAgent
from pointsman.ports import Model
from pointsman_schemas.team import Team

__all__ = ["shipped_teams", "with_model"]


@contextmanager
def with_model(agent: LLMAgent, model: Model) -> Iterator[None]:
    """`agent` with another model for a while: it is shared by all tests of a process."""
    own = agent._specs
    agent._specs = (model,)
    vars(agent).pop("models", None)
    try:
        yield
    finally:
        agent._specs = own
        vars(agent).pop("models", None)


def shipped_teams() -> Iterator[ModuleType]:
    """Each module that `pointsman up` takes: it has a team and a sample request. A package stands for its modules."""
    found: list[str] = []
    for info in pkgutil.walk_packages(pointsman_agents.__path__, "pointsman_agents."):
        if any(info.name.startswith(f"{name}.") for name in found):
            continue
        module = importlib.import_module(info.name)
        if isinstance(getattr(module, "team", None), Team) and hasattr(module, "SAMPLE_REQUEST"):
            found.append(info.name)
            yield module
