"""A model without a network. It matches words, fills in arguments, quotes results, and adds a note to its answers.

The model reads only the request: the name of the output (such as `plan` or `synthesis`), the data in the first turn,
the tools and their results. So equal requests always get equal replies.
"""

from __future__ import annotations

from pydantic import ValidationError

from pointsman.llm.offline.roles import ROLE_HANDLERS
from pointsman.llm.offline.work import reply, work
from pointsman.llm.prompt import parse_task
from pointsman.ports.model import ModelReply, ModelRequest
from pointsman_schemas.strict_json import as_json_value

__all__ = ["OfflineModel"]


class OfflineModel:
    """Model that plans and classifies by the agents' cards, and calls tools by their descriptions."""

    provider = "offline"
    name = "offline"
    account = ""

    async def complete(self, request: ModelRequest) -> ModelReply:
        task = parse_task(next((turn.text for turn in request.turns if turn.role == "user"), ""))
        if request.output_schema is not None and (role := ROLE_HANDLERS.get(request.output_name)) is not None:
            try:
                return reply(data=as_json_value(role(task)))
            except ValidationError:
                pass  # not a role: an author's output type has the same name as a role's output, so do a usual task
        return work(request, task)

    async def close(self) -> None:
        return None
