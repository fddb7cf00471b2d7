"""An id as a person types it: whole, or as much of its beginning as is no other's."""

from __future__ import annotations

from collections.abc import Sequence

from pointsman.client.client import Client
from pointsman.client.operations import DeadLetterEntry, Operations
from pointsman.errors import ConfigurationError, NotFoundError
from pointsman_schemas.ids import workflow_id_for

__all__ = ["resolve_approval_id", "resolve_dead_letter", "resolve_workflow_id"]

_ID_LENGTH = len(workflow_id_for("", ""))
_MAX_LISTED = 5  # ids that are named where a beginning fits several


async def resolve_workflow_id(client: Client, given: str) -> str:
    """The id that `given` is or begins; as it was given where none begins so, for what is done with it to say.

    Raises:
        ConfigurationError: several begin so.
    """
    if len(given) >= _ID_LENGTH or len(given) <= len("wf_") or not given.startswith("wf_"):
        return given
    return _single_match(given, await client.find_by_prefix(given), "workflows")


async def resolve_approval_id(client: Client, given: str) -> str:
    """As `resolve_workflow_id`: the id of an approval is its workflow's, a hyphen and its own part, which is short."""
    workflow, hyphen, own = given.rpartition("-")
    return await resolve_workflow_id(client, workflow) + hyphen + own


async def resolve_dead_letter(operations: Operations, given: str) -> DeadLetterEntry:
    """The dead letter that is called `given` or begins so. Raises `NotFoundError`; `ConfigurationError` for several."""
    try:
        return await operations.dead_letter(given)
    except NotFoundError:
        found = [letter.content.id for letter in await operations.dead_letters() if letter.content.id.startswith(given)]
        if not found:
            raise
    return await operations.dead_letter(_single_match(given, found, "dead letters"))


def _single_match(given: str, found: Sequence[str], what: str) -> str:
    if given in found or not found:
        return given
    if len(found) > 1:
        named = ", ".join(found[:_MAX_LISTED]) + (", ..." if len(found) > _MAX_LISTED else "")
        raise ConfigurationError(f"{len(found)} {what} begin with {given}: {named}; give more of the id")
    return found[0]
