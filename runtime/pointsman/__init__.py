"""Pointsman: teams of LLM agents over NATS JetStream.

What authors of agents and callers of teams need, in one place. A name is loaded when it is first used, so importing
the package costs nothing.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pointsman import errors
    from pointsman.agent import Agent, agent
    from pointsman.agent_factory import AgentFactory
    from pointsman.client import Client, connect
    from pointsman.context import Context
    from pointsman.llm_agent import LLMAgent
    from pointsman.tools import tool
    from pointsman_schemas.team import (
        ANY,
        Adaptive,
        Check,
        Choreography,
        FanOut,
        Limits,
        Pipeline,
        Router,
        Stage,
        Supervisor,
        Team,
    )

__all__ = [
    "ANY",
    "Adaptive",
    "Agent",
    "AgentFactory",
    "Check",
    "Choreography",
    "Client",
    "Context",
    "FanOut",
    "LLMAgent",
    "Limits",
    "Pipeline",
    "Router",
    "Stage",
    "Supervisor",
    "Team",
    "agent",
    "connect",
    "errors",
    "tool",
]

_HOME = {
    "ANY": "pointsman_schemas.team",
    "Adaptive": "pointsman_schemas.team",
    "Agent": "pointsman.agent",
    "AgentFactory": "pointsman.agent_factory",
    "Check": "pointsman_schemas.team",
    "Choreography": "pointsman_schemas.team",
    "Client": "pointsman.client",
    "Context": "pointsman.context",
    "FanOut": "pointsman_schemas.team",
    "LLMAgent": "pointsman.llm_agent",
    "Limits": "pointsman_schemas.team",
    "Pipeline": "pointsman_schemas.team",
    "Router": "pointsman_schemas.team",
    "Stage": "pointsman_schemas.team",
    "Supervisor": "pointsman_schemas.team",
    "Team": "pointsman_schemas.team",
    "agent": "pointsman.agent",
    "connect": "pointsman.client",
    "tool": "pointsman.tools",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'pointsman' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """The import system binds each submodule it loads on its package, and would so hide the decorator `agent` behind
    the module `pointsman.agent`, depending on who imported what first."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name == "agent" and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
