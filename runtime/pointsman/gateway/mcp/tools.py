"""Convert a team to a tool, the arguments of a call to a request, and an outcome to the result of a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import mcp.types as types
from pydantic import JsonValue

from pointsman.errors import ContractError
from pointsman.gateway.models import OutcomeView
from pointsman.gateway.openai.commentary import Commentary
from pointsman_schemas.card import AgentCard
from pointsman_schemas.events import Delta, Progress
from pointsman_schemas.files import File
from pointsman_schemas.log import AttemptFailed, Entry, TaskSucceeded
from pointsman_schemas.strict_json import compact_json

__all__ = ["META_PREFIX", "Narrator", "TeamTool", "error_result", "file_uri", "outcome_result", "workflow_uri"]

META_PREFIX = "io.pointsman/"
"""The prefix of Pointsman's own keys in `_meta`."""
_REQUEST = "request"
_MAX_TEXT_CHARS = 4_000
"""Largest number of characters of a text in a progress notification.

Each notification repeats the text so far. To bound the size of notifications, the beginning of a longer text is cut.
"""
_TEXT_SCHEMA = {
    "type": "object",
    "properties": {_REQUEST: {"type": "string", "description": "The whole request as text."}},
    "required": [_REQUEST],
}


@dataclass(frozen=True, slots=True)
class TeamTool:
    """A team as a tool.

    Attributes:
        name: The name of the team.
        description: The requests that the team serves.
        input_schema: JSON Schema of the request; empty for a team whose request is text.
    """

    name: str
    description: str = ""
    input_schema: Mapping[str, JsonValue] = field(default_factory=dict)

    @classmethod
    def of(cls, card: AgentCard) -> TeamTool:
        """Return the tool of a team.

        Args:
            card: The card of a supervisor.
        """
        return cls(card.name, card.description, dict(card.input_schema))

    @property
    def takes_fields(self) -> bool:
        """True if the request is an object with the fields of the schema; False if the request is a text."""
        return self.input_schema.get("type") == "object"

    def as_tool(self) -> types.Tool:
        """Return the tool in MCP's form.

        The input of an MCP tool is an object. So, for a team whose request is text, the input has a field `request`.
        """
        subject = (self.description or f"The team {self.name}").rstrip(".")
        if self.takes_fields:
            return types.Tool(name=self.name, description=f"{subject}.", input_schema=dict(self.input_schema))
        return types.Tool(
            name=self.name, description=f"{subject}. Send the whole request as text.", input_schema=_TEXT_SCHEMA
        )

    def request_of(self, arguments: Mapping[str, Any]) -> str | dict[str, JsonValue]:
        """Return the request for the arguments of a call.

        Args:
            arguments: The arguments.

        Returns:
            The request.

        Raises:
            ContractError: The team expects text, but the arguments have no text.
        """
        if self.takes_fields:
            return dict(arguments)
        text = arguments.get(_REQUEST)
        if not isinstance(text, str) or not text:
            raise ContractError(f"the tool {self.name} expects one text; send the whole request as `request`")
        return text


class Narrator:
    """Describe the work of one workflow in lines for progress notifications."""

    def __init__(self) -> None:
        self._commentary = Commentary()
        self._texts: dict[tuple[str, str], str] = {}
        """The newest characters of the text that an agent writes, by task and agent."""

    def line(self, item: Entry | Progress | Delta) -> str:
        """Return the line for an entry of the log, for a report of an agent, or for a piece of an agent's text.

        Args:
            item: The entry, the report or the piece.

        Returns:
            The line; empty if callers do not need the item. The line for a piece has the agent and its text so far.
        """
        if isinstance(item, Progress):
            return f"{item.agent}: {item.message or item.name}" if item.kind != "chat" else ""
        if isinstance(item, Delta):
            return f"{item.agent}: {self._text(item)}"
        if isinstance(item, TaskSucceeded | AttemptFailed):
            self._texts = {key: text for key, text in self._texts.items() if key[0] != item.task_id}
        return self._commentary.line(item)

    def _text(self, piece: Delta) -> str:
        """Return the text so far, with a piece added. A repeated model call begins a new text."""
        begins = bool(piece.call) and piece.offset == 0
        key = piece.task_id, piece.agent
        text = ("" if begins else self._texts.get(key, "")) + piece.text
        if len(text) > _MAX_TEXT_CHARS:
            text = f"…{text[1 - _MAX_TEXT_CHARS :]}"
        self._texts[key] = text
        return text


def outcome_result(workflow: str, outcome: OutcomeView, files: Sequence[File] = ()) -> types.CallToolResult:
    """Return the result of a call for an outcome.

    Args:
        workflow: The workflow.
        outcome: The outcome.
        files: The files that the team returned.

    Returns:
        The answer, or an error if the workflow has no answer. An answer that is an object is also sent as structured
        content.
    """
    gaps = "".join(f"\n- {gap.task_id} ({gap.agent}): {gap.reason}" for gap in outcome.gaps)
    if outcome.status not in ("completed", "partial"):
        return error_result(f"workflow {workflow} {outcome.status}: {outcome.reason}{gaps}", workflow)
    answer = outcome.answer
    text = answer if isinstance(answer, str) else compact_json(answer).decode()
    if outcome.status == "partial":
        text += f"\n\nNot answered:{gaps}"
    links = [
        types.ResourceLink(
            type="resource_link",
            name=file.name,
            uri=file_uri(workflow, number),
            mime_type=file.media_type,
            size=file.size,
        )
        for number, file in enumerate(files, 1)
    ]
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=text), *links],
        structured_content=answer if isinstance(answer, dict) else None,
        _meta=_meta(workflow),
    )


def error_result(text: str, workflow: str | None = None) -> types.CallToolResult:
    """Return the result of a call that has no answer.

    Args:
        text: The reason.
        workflow: The workflow, if there is one.

    Returns:
        The result.
    """
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=text)],
        is_error=True,
        _meta=None if workflow is None else _meta(workflow),
    )


def workflow_uri(workflow: str) -> str:
    """Return the URI of a workflow's outcome.

    Args:
        workflow: The workflow.
    """
    return f"pointsman://workflows/{workflow}"


def file_uri(workflow: str, number: int) -> str:
    """Return the URI of a file that a workflow returned.

    Args:
        workflow: The workflow.
        number: The number of the file, from 1.
    """
    return f"{workflow_uri(workflow)}/files/{number}"


def _meta(workflow: str) -> dict[str, Any]:
    return {f"{META_PREFIX}workflow": workflow}
