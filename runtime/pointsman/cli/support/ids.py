"""An id as a person types it: whole, or as much of its beginning as is no other's."""

from __future__ import annotations

from collections.abc import Sequence

from pointsman.client.client import Client
from pointsman.engine.operations.dead_letters import DeadLetters, Letter
from pointsman.errors import ConfigurationError, NotFound
from pointsman_schemas.ids import workflow_id_for

__all__ = ["the_approval", "the_letter", "the_workflow"]

_ID_LENGTH = len(workflow_id_for("", ""))
_NAMED = 5  # ids that are named where a beginning fits several


async def the_workflow(client: Client, given: str) -> str:
    """The id that `given` is or begins; as it was given where none begins so, for what is done with it to say.

    Raises:
        ConfigurationError: several begin so.
    """
    if len(given) >= _ID_LENGTH or len(given) <= len("wf_") or not given.startswith("wf_"):
        return given
    return _only(given, await client.beginning(given), "workflows")


async def the_approval(client: Client, given: str) -> str:
    """As `the_workflow`: the id of an approval is its workflow's, a hyphen and its own part, which is short."""
    workflow, hyphen, own = given.rpartition("-")
    return await the_workflow(client, workflow) + hyphen + own


async def the_letter(store: DeadLetters, given: str) -> Letter:
    """The dead letter that is called `given` or begins so. Raises `NotFound`; `ConfigurationError` for several."""
    try:
        return await store.get(given)
    except NotFound:
        found = [letter.content.id for letter in await store.list() if letter.content.id.startswith(given)]
        if not found:
            raise
    return await store.get(_only(given, found, "dead letters"))


def _only(given: str, found: Sequence[str], what: str) -> str:
    if given in found or not found:
        return given
    if len(found) > 1:
        named = ", ".join(found[:_NAMED]) + (", ..." if len(found) > _NAMED else "")
        raise ConfigurationError(f"{len(found)} {what} begin with {given}: {named}; give more of the id")
    return found[0]
