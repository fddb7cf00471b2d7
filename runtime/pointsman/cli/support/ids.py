"""Find the id that a user has typed. The user may type the whole id or a unique beginning of the id."""

from __future__ import annotations

from collections.abc import Sequence

from pointsman.client.client import Client
from pointsman.client.operations import DeadLetterEntry, Operations
from pointsman.errors import ConfigurationError, NotFoundError
from pointsman_schemas.ids import workflow_id_for

__all__ = ["resolve_dead_letter", "resolve_question_id", "resolve_workflow_id"]

_ID_LENGTH = len(workflow_id_for("", ""))
_MAX_LISTED = 5  # largest number of ids in an error about several ids with the same beginning


async def resolve_workflow_id(client: Client, given: str) -> str:
    """Return the id of a workflow.

    Args:
        client: The client.
        given: The id, or its beginning with at least one character after `wf_`.

    Returns:
        The id; `given` if no recent workflow has this beginning.

    Raises:
        ConfigurationError: Several workflows have this beginning.
    """
    if len(given) >= _ID_LENGTH or len(given) <= len("wf_") or not given.startswith("wf_"):
        return given
    return _single_match(given, await client.find_by_prefix(given), "workflows")


async def resolve_question_id(client: Client, given: str) -> str:
    """Return the id of a question. It consists of the id of the workflow, a hyphen and a short suffix.

    Args:
        client: The client.
        given: The id. The part before the hyphen may be the beginning of the workflow's id.

    Returns:
        The id.

    Raises:
        ConfigurationError: Several workflows have this beginning.
    """
    workflow, hyphen, suffix = given.rpartition("-")
    return await resolve_workflow_id(client, workflow) + hyphen + suffix


async def resolve_dead_letter(operations: Operations, given: str) -> DeadLetterEntry:
    """Return a dead letter.

    Args:
        operations: The operations of the client.
        given: The id or its beginning.

    Returns:
        The dead letter.

    Raises:
        ConfigurationError: Several dead letters have this beginning.
        NotFoundError: There is no such dead letter.
    """
    try:
        return await operations.dead_letter(given)
    except NotFoundError:
        found = [letter.content.id for letter in await operations.dead_letters() if letter.content.id.startswith(given)]
        if not found:
            raise
    return await operations.dead_letter(_single_match(given, found, "dead letters"))


def _single_match(given: str, found: Sequence[str], plural: str) -> str:
    if given in found or not found:
        return given
    if len(found) > 1:
        listed = ", ".join(found[:_MAX_LISTED]) + (", ..." if len(found) > _MAX_LISTED else "")
        raise ConfigurationError(f"{len(found)} {plural} begin with {given}: {listed}; give more of the id")
    return found[0]
