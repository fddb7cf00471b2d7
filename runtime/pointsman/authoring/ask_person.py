"""A tool by which a model asks a person. An agent has the tool only if its author lists it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from pointsman.authoring.context import Context
from pointsman.authoring.tools import tool

__all__ = ["ask_person"]


@tool(idempotent=True)
async def ask_person(
    context: Context,
    question: Annotated[
        str, Field(min_length=1, max_length=2_000, description="The question, with all facts that it needs.")
    ],
    choices: Annotated[
        list[str], Field(max_length=50, description="The possible answers. Leave the list empty for a free text.")
    ] = [],  # noqa: B006 - the schema of the tool shows the default, and nothing changes the list
) -> str:
    """Ask a person for a fact or a decision that neither the task nor another tool gives.

    The answer may take hours. Ask one clear question, and only if the work cannot continue without the answer.

    Returns:
        The answer.
    """
    return await context.ask(question, choices=choices or None)
