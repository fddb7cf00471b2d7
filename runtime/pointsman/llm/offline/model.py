"""A model without a network: match words, fill in arguments, quote results, and sign as no language model.

The model reads the request alone: the name of the output (`plan`, `selection`, `synthesis`), the data in the first
turn, the tools and their results. The same request always gets the same reply.
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
    """Plans and classifies by the agents' cards, works by the tools' descriptions, answers with the tools' results."""

    provider = "offline"
    name = "offline"
    account = ""

    async def complete(self, request: ModelRequest) -> ModelReply:
        task = parse_task(next((turn.text for turn in request.turns if turn.role == "user"), ""))
        if request.output_schema is not None and (role := ROLE_HANDLERS.get(request.output_name)) is not None:
            try:
                return reply(data=as_json_value(role(task)))
            except ValidationError:
                pass  # the author's own schema has the name of a role's schema: work as for any task
        return work(request, task)

    async def close(self) -> None:
        return None
