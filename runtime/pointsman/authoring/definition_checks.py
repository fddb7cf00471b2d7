"""Check the definition of an LLM agent. An error is raised when the agent is defined, before its first task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, JsonValue

from pointsman.authoring.tools import Tool, ToolSource
from pointsman.errors import ConfigurationError
from pointsman.ports.model import Model

__all__ = [
    "as_list",
    "check_tools",
    "instructions_text",
    "is_positive_int",
    "model_specs",
    "output_schema",
    "tools_by_name",
]


def tools_by_name(tools: Sequence[Tool[..., Any]], agent: str, durable: bool) -> dict[str, Tool[..., Any]]:
    """Return the tools by name.

    Args:
        tools: The tools.
        agent: The name of the agent.
        durable: True if the agent stores the steps of an attempt.

    Returns:
        The tools by name.

    Raises:
        ConfigurationError: Two tools have the same name. Or the agent is not durable, and a tool that needs an approval
            is not idempotent, so one approval could allow two calls of this tool.
    """
    repeated = [tool for tool, count in Counter(tool.name for tool in tools).items() if count > 1]
    if repeated:
        raise ConfigurationError(
            f"agent {agent} has several tools named {repeated[0]}; rename all but one, or give mcp_tools a prefix="
        )
    for tool in () if durable else tools:
        if tool.approval and not tool.idempotent:
            raise ConfigurationError(
                f"agent {agent} has durable=False and the tool {tool.name}, which needs an approval and is not "
                "idempotent: a repeated attempt would make the approved call again. Leave out durable=False, or "
                "make the tool safe to repeat with Context.idempotency_key, and set idempotent=True"
            )
    return {tool.name: tool for tool in tools}


def check_tools(tools: Any, agent: str) -> tuple[Tool[..., Any] | ToolSource, ...]:
    """Check that each tool is a tool or a source of tools.

    Args:
        tools: The given tools.
        agent: The name of the agent.

    Returns:
        The tools.

    Raises:
        ConfigurationError: An element is neither a tool nor a source of tools.
    """
    for each in (listed := as_list(tools, "tools", agent)):
        if not isinstance(each, Tool) and not (hasattr(each, "tools") and hasattr(each, "close")):
            what = getattr(each, "__name__", None) or repr(each)
            raise ConfigurationError(
                f"agent {agent} has {what} among its tools, which is not a tool; write @tool above its def, or give a "
                "source of tools, such as mcp_tools(...)"
            )
    return listed


def model_specs(model: Any, agent: str) -> tuple[str | Model | None, ...]:
    """Return the models of an agent as a tuple.

    Args:
        model: The given model, or several models.
        agent: The name of the agent.

    Returns:
        The models; None means the default model.

    Raises:
        ConfigurationError: A given value cannot be a model.
    """
    if isinstance(model, Sequence) and not model:
        raise ConfigurationError(f"agent {agent} has model={model!r}; name at least one, or pass None for the default")
    specs = tuple(model) if isinstance(model, Sequence) and not isinstance(model, str) else (model,)
    for each in specs:
        if not (each is None or isinstance(each, str) or (hasattr(each, "complete") and not isinstance(each, type))):
            raise ConfigurationError(
                f"agent {agent} has model={each!r}; expected openai:NAME, openai-responses:NAME, anthropic:NAME, "
                "offline, or an object with `complete` such as a ScriptedModel"
            )
    return specs


def is_positive_int(given: Any) -> bool:
    """Return True if a value is a whole number of at least 1.

    Args:
        given: The value.
    """
    return isinstance(given, int) and given >= 1


def as_list(given: Any, what: str, agent: str) -> tuple[Any, ...]:
    """Check that a value is a list.

    Args:
        given: The value.
        what: The name of the argument.
        agent: The name of the agent.

    Returns:
        The elements.

    Raises:
        ConfigurationError: The value is a single element or a text.
    """
    if isinstance(given, Sequence) and not isinstance(given, str):
        return tuple(given)
    raise ConfigurationError(f"agent {agent} has a {type(given).__name__} as its {what}; expected a list, {what}=[...]")


def output_schema(output: Any, agent: str) -> dict[str, JsonValue] | None:
    """Return the JSON Schema of an output type.

    Args:
        output: The given type.
        agent: The name of the agent.

    Returns:
        The schema; None for text.

    Raises:
        ConfigurationError: The type is not a pydantic model.
    """
    if output is None:
        return None
    if not (isinstance(output, type) and issubclass(output, BaseModel)):
        raise ConfigurationError(
            f"agent {agent} has output={output!r}; expected a pydantic model, or None for text; put a value of "
            "another type into a field of a model"
        )
    return output.model_json_schema()


def instructions_text(instructions: Any, agent: str) -> str:
    """Return the prompt of an agent, without white space around it.

    Args:
        instructions: The prompt, or the path of a file.
        agent: The name of the agent.

    Returns:
        The text.

    Raises:
        ConfigurationError: The prompt is missing, or the file cannot be read.
    """
    if not isinstance(instructions, str | Path):
        raise ConfigurationError(
            f"agent {agent} has instructions={instructions!r}; expected its prompt as text, or the Path of a file"
        )
    try:
        text = instructions if isinstance(instructions, str) else instructions.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"the instructions of agent {agent} cannot be read: {error}") from None
    if not text.strip():
        raise ConfigurationError(f"agent {agent} has no instructions; describe its work and its method")
    return text.strip()
