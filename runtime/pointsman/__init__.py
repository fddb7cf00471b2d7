"""Pointsman: teams of LLM agents over NATS JetStream.

Import all names for agents, teams, callers and operators from this package. A name is loaded when the name is first
used, because `import pointsman` must stay quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pointsman import errors
    from pointsman.authoring.agent import Agent, agent
    from pointsman.authoring.agent_factory import AgentFactory
    from pointsman.authoring.ask_person import ask_person
    from pointsman.authoring.context import Context
    from pointsman.authoring.interceptor import (
        AttemptInvocation,
        Interceptor,
        ModelInvocation,
        Next,
        ToolInvocation,
    )
    from pointsman.authoring.lifespan import Lifespan, lifespan
    from pointsman.authoring.llm_agent import LLMAgent
    from pointsman.authoring.mcp import mcp_tools
    from pointsman.authoring.tools import Tool, tool
    from pointsman.client.batch import BatchRow
    from pointsman.client.client import Client, WorkflowSummary, connect
    from pointsman.client.operations import AnswerResult, Archive, DeadLetterEntry, Operations, ReplayResult
    from pointsman.client.schedules import Schedules
    from pointsman.client.thread import Thread
    from pointsman.client.workflow import Workflow, WorkflowEvent
    from pointsman.errors import (
        AnswerRequiredError,
        BusUnavailableError,
        BusyThreadError,
        ConfigurationError,
        ContractError,
        ModelError,
        NotFoundError,
        PointsmanError,
        RefusedError,
        ScheduleRefusedError,
        TaskError,
        UnansweredError,
    )
    from pointsman.ports.model import ModelReply, ModelRequest
    from pointsman.settings import Settings
    from pointsman_schemas.card import AgentCard, Role
    from pointsman_schemas.events import (
        Budget,
        ErrorKind,
        Gap,
        History,
        Outcome,
        PastTurn,
        Progress,
        Question,
        TaskReport,
        Usage,
    )
    from pointsman_schemas.plan import ForEach, Plan, PlannedTask, PlanQuestion, SelectedAgent, Selection
    from pointsman_schemas.role_io import (
        ClassifierInput,
        ConflictRuling,
        JudgeInput,
        PlannerAnswer,
        PlannerInput,
        Refinement,
        RefinerInput,
        Review,
        ReviewInput,
        SummarizerInput,
        Synthesis,
        SynthesizerInput,
        ThreadSummary,
    )
    from pointsman_schemas.schedules import Schedule, ScheduleRun
    from pointsman_schemas.team import (
        ANY,
        Adaptive,
        Check,
        Choreography,
        DailyLimits,
        FanOut,
        Fixed,
        Limits,
        Pipeline,
        PlanAndExecute,
        RetryPolicy,
        Router,
        Stage,
        Team,
        ThreadPolicy,
    )

__all__ = [
    "ANY",
    "Adaptive",
    "Agent",
    "AgentCard",
    "AgentFactory",
    "AnswerRequiredError",
    "AnswerResult",
    "Archive",
    "AttemptInvocation",
    "BatchRow",
    "Budget",
    "BusUnavailableError",
    "BusyThreadError",
    "Check",
    "Choreography",
    "ClassifierInput",
    "Client",
    "ConfigurationError",
    "ConflictRuling",
    "Context",
    "ContractError",
    "DailyLimits",
    "DeadLetterEntry",
    "ErrorKind",
    "FanOut",
    "Fixed",
    "ForEach",
    "Gap",
    "History",
    "Interceptor",
    "JudgeInput",
    "LLMAgent",
    "Lifespan",
    "Limits",
    "ModelError",
    "ModelInvocation",
    "ModelReply",
    "ModelRequest",
    "Next",
    "NotFoundError",
    "Operations",
    "Outcome",
    "PastTurn",
    "Pipeline",
    "Plan",
    "PlanAndExecute",
    "PlanQuestion",
    "PlannedTask",
    "PlannerAnswer",
    "PlannerInput",
    "PointsmanError",
    "Progress",
    "Question",
    "Refinement",
    "RefinerInput",
    "RefusedError",
    "ReplayResult",
    "RetryPolicy",
    "Review",
    "ReviewInput",
    "Role",
    "Router",
    "Schedule",
    "ScheduleRefusedError",
    "ScheduleRun",
    "Schedules",
    "SelectedAgent",
    "Selection",
    "Settings",
    "Stage",
    "SummarizerInput",
    "Synthesis",
    "SynthesizerInput",
    "TaskError",
    "TaskReport",
    "Team",
    "Thread",
    "ThreadPolicy",
    "ThreadSummary",
    "Tool",
    "ToolInvocation",
    "UnansweredError",
    "Usage",
    "Workflow",
    "WorkflowEvent",
    "WorkflowSummary",
    "agent",
    "ask_person",
    "connect",
    "errors",
    "lifespan",
    "mcp_tools",
    "tool",
]

_NAMES = {
    "pointsman.authoring.agent": (
        "Agent",
        "agent",
    ),
    "pointsman.authoring.agent_factory": ("AgentFactory",),
    "pointsman.authoring.ask_person": ("ask_person",),
    "pointsman.authoring.context": ("Context",),
    "pointsman.authoring.interceptor": (
        "AttemptInvocation",
        "Interceptor",
        "ModelInvocation",
        "Next",
        "ToolInvocation",
    ),
    "pointsman.authoring.lifespan": (
        "Lifespan",
        "lifespan",
    ),
    "pointsman.authoring.llm_agent": ("LLMAgent",),
    "pointsman.authoring.mcp": ("mcp_tools",),
    "pointsman.authoring.tools": (
        "Tool",
        "tool",
    ),
    "pointsman.client.batch": ("BatchRow",),
    "pointsman.client.client": (
        "Client",
        "WorkflowSummary",
        "connect",
    ),
    "pointsman.client.operations": (
        "AnswerResult",
        "Archive",
        "DeadLetterEntry",
        "Operations",
        "ReplayResult",
    ),
    "pointsman.client.schedules": ("Schedules",),
    "pointsman.client.thread": ("Thread",),
    "pointsman.client.workflow": (
        "Workflow",
        "WorkflowEvent",
    ),
    "pointsman.errors": (
        "AnswerRequiredError",
        "BusUnavailableError",
        "BusyThreadError",
        "ConfigurationError",
        "ContractError",
        "ModelError",
        "NotFoundError",
        "PointsmanError",
        "RefusedError",
        "ScheduleRefusedError",
        "TaskError",
        "UnansweredError",
    ),
    "pointsman.ports.model": (
        "ModelReply",
        "ModelRequest",
    ),
    "pointsman.settings": ("Settings",),
    "pointsman_schemas.card": (
        "AgentCard",
        "Role",
    ),
    "pointsman_schemas.events": (
        "Budget",
        "ErrorKind",
        "Gap",
        "History",
        "Outcome",
        "PastTurn",
        "Progress",
        "Question",
        "TaskReport",
        "Usage",
    ),
    "pointsman_schemas.plan": (
        "ForEach",
        "Plan",
        "PlanQuestion",
        "PlannedTask",
        "SelectedAgent",
        "Selection",
    ),
    "pointsman_schemas.role_io": (
        "ClassifierInput",
        "ConflictRuling",
        "JudgeInput",
        "PlannerAnswer",
        "PlannerInput",
        "Refinement",
        "RefinerInput",
        "Review",
        "ReviewInput",
        "SummarizerInput",
        "Synthesis",
        "SynthesizerInput",
        "ThreadSummary",
    ),
    "pointsman_schemas.schedules": (
        "Schedule",
        "ScheduleRun",
    ),
    "pointsman_schemas.team": (
        "ANY",
        "Adaptive",
        "Check",
        "Choreography",
        "DailyLimits",
        "FanOut",
        "Fixed",
        "Limits",
        "Pipeline",
        "PlanAndExecute",
        "RetryPolicy",
        "Router",
        "Stage",
        "Team",
        "ThreadPolicy",
    ),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'pointsman' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
