"""Pointsman: teams of LLM agents over NATS JetStream.

What authors of agents and callers of teams need, in one place. A name is loaded when it is first used, so importing
the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pointsman import errors
    from pointsman.authoring.agent import Agent, agent
    from pointsman.authoring.agent_factory import AgentFactory
    from pointsman.authoring.context import Context
    from pointsman.authoring.llm_agent import LLMAgent
    from pointsman.authoring.tools import tool
    from pointsman.client.client import Client, connect
    from pointsman_schemas.team import (
        ANY,
        Adaptive,
        Check,
        Choreography,
        FanOut,
        Limits,
        Pipeline,
        PlanAndExecute,
        Router,
        Stage,
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
    "PlanAndExecute",
    "Router",
    "Stage",
    "Team",
    "agent",
    "connect",
    "errors",
    "tool",
]

_HOME = {
    "ANY": "pointsman_schemas.team",
    "Adaptive": "pointsman_schemas.team",
    "Agent": "pointsman.authoring.agent",
    "AgentFactory": "pointsman.authoring.agent_factory",
    "Check": "pointsman_schemas.team",
    "Choreography": "pointsman_schemas.team",
    "Client": "pointsman.client.client",
    "Context": "pointsman.authoring.context",
    "FanOut": "pointsman_schemas.team",
    "LLMAgent": "pointsman.authoring.llm_agent",
    "Limits": "pointsman_schemas.team",
    "Pipeline": "pointsman_schemas.team",
    "Router": "pointsman_schemas.team",
    "Stage": "pointsman_schemas.team",
    "PlanAndExecute": "pointsman_schemas.team",
    "Team": "pointsman_schemas.team",
    "agent": "pointsman.authoring.agent",
    "connect": "pointsman.client.client",
    "tool": "pointsman.authoring.tools",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'pointsman' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
