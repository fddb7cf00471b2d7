"""List, replay and discard dead letters, for operators."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, ConfigDict, Field

from pointsman.gateway.context import CallerArg, ContextArg
from pointsman.gateway.models import DeadLetterPage, DeadLetterView, ReplayRequest, ReplayView, Timestamp
from pointsman.gateway.problems import problems
from pointsman_schemas.ids import TOKEN_PATTERN

__all__ = ["router"]

router = APIRouter(prefix="/v1/dead-letters", tags=["dead letters"])

LetterPath = Annotated[str, Path(pattern=TOKEN_PATTERN, description="The id of the dead letter.")]


class LetterQuery(BaseModel):
    """The filters of a list."""

    model_config = ConfigDict(extra="forbid")

    origin: Annotated[str, Field(pattern=TOKEN_PATTERN)] | None = Field(
        default=None, description="Only dead letters of this agent or team."
    )
    workflow_id: Annotated[str, Field(pattern=TOKEN_PATTERN)] | None = Field(
        default=None, description="Only dead letters of this workflow."
    )
    kind: Annotated[str, Field(min_length=1, max_length=100)] | None = Field(
        default=None, description="Only dead letters with this kind of error."
    )
    since: Timestamp | None = Field(
        default=None, description="Only dead letters that were written at this time or later."
    )
    until: Timestamp | None = Field(default=None, description="Only dead letters that were written before this time.")
    limit: int = Field(default=100, ge=1, le=1_000, description="Largest number of dead letters in the list.")


@router.get("", summary="List dead letters", responses=problems())
async def list_dead_letters(
    context: ContextArg, caller: CallerArg, query: Annotated[LetterQuery, Query()]
) -> DeadLetterPage:
    """List the messages that could not be processed, the oldest first. For operators."""
    caller.require_operator()
    found = await context.client.operations.dead_letters(
        origin=query.origin,
        workflow=query.workflow_id,
        cause=query.kind,
        since=query.since,
        until=query.until,
        limit=query.limit,
    )
    return DeadLetterPage(dead_letters=[DeadLetterView.of(each.content) for each in found])


@router.get("/{letter_id}", summary="Read a dead letter", responses=problems(404))
async def get_dead_letter(letter_id: LetterPath, context: ContextArg, caller: CallerArg) -> DeadLetterView:
    """Read one dead letter. For operators."""
    caller.require_operator()
    return DeadLetterView.of((await context.client.operations.dead_letter(letter_id)).content)


@router.post("/{letter_id}/replay", summary="Replay a dead letter", responses=problems(404, 409))
async def replay_dead_letter(
    letter_id: LetterPath, body: ReplayRequest, context: ContextArg, caller: CallerArg
) -> ReplayView:
    """Process the message of a dead letter again, and remove the letter. For operators."""
    caller.require_operator()
    operations = context.client.for_user(caller.name).operations  # the record of the replay contains this name
    done = await operations.replay(await operations.dead_letter(letter_id), as_new=body.as_new)
    return ReplayView(workflow_id=done.workflow, action=done.action)


@router.delete("/{letter_id}", status_code=204, summary="Discard a dead letter", responses=problems(404))
async def discard_dead_letter(letter_id: LetterPath, context: ContextArg, caller: CallerArg) -> None:
    """Remove a dead letter permanently. For operators."""
    caller.require_operator()
    operations = context.client.for_user(caller.name).operations
    await operations.discard(await operations.dead_letter(letter_id))
