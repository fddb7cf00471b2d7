"""The commands for dead letters: list, show, replay, discard."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any

import typer

from pointsman.cli.arguments import Json, OfWorkflow, Since, Until, parse_time
from pointsman.cli.render.outcome import body_text, dead_letter_table
from pointsman.cli.render.output import (
    Code,
    code_for,
    console,
    escape_control,
    print_error,
    print_hint,
    print_json,
    print_list,
    print_prose,
    print_table,
    with_connection_options,
)
from pointsman.cli.support.ids import resolve_dead_letter, resolve_workflow_id
from pointsman.cli.support.session import Session, broker_command
from pointsman.client.client import Client
from pointsman.client.operations import Operations
from pointsman.engine.log.reader import newest_commit
from pointsman.engine.operations.dead_letter_entry import DeadLetterEntry
from pointsman.engine.operations.dead_letter_replay import NotReplayableError
from pointsman.engine.operations.dead_letters import MAX_CONCURRENT_REPLAYS
from pointsman.errors import ConfigurationError, NotFoundError
from pointsman_schemas.log import WorkflowEnded

__all__ = ["LetterFilter", "discard", "list_", "replay", "show"]

_MAX_COUNTED = 1_000  # number of dead letters that are read to list their causes, if none has the wanted cause

_Ids = Annotated[
    list[str] | None,
    typer.Argument(metavar="[ID]...", help="Ids of dead letters. A unique beginning of an id is sufficient."),
]
_Origin = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Use only dead letters of this agent or team. Default: of all.", show_default=False
    ),
]
_Cause = Annotated[
    str | None,
    typer.Option(
        metavar="KIND",
        help="Use only dead letters with this kind of cause, such as handler_error. Default: all kinds.",
        show_default=False,
    ),
]
_Limit = Annotated[
    int | None,
    typer.Option(
        min=1, help="The maximum number of dead letters, oldest first. Default: no maximum.", show_default=False
    ),
]
_All = Annotated[bool, typer.Option("--all", help="Use all dead letters.")]
_Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


@dataclass(frozen=True, slots=True)
class LetterFilter:
    """The choice of dead letters in a command: by `ids`, or by all other fields together.

    `since` and `until` have the form of the options, which is an age such as 2h or a time.
    """

    ids: Sequence[str] = ()
    all: bool = False
    origin: str | None = None
    workflow: str | None = None
    cause: str | None = None
    since: str | None = None
    until: str | None = None
    limit: int | None = None

    @property
    def has_filter(self) -> bool:
        """True if `all` or a filter is given."""
        return self.all or any((self.origin, self.workflow, self.cause, self.since, self.until))

    async def find(self, client: Client) -> Sequence[DeadLetterEntry]:
        """Find the dead letters.

        Args:
            client: The client.

        Returns:
            The dead letters, oldest first.

        Raises:
            NotFoundError: An id does not exist.
            ConfigurationError: A time cannot be read, or the ids of several dead letters begin with a given id.
        """
        store = client.operations
        if self.ids:
            return [await resolve_dead_letter(store, name) for name in self.ids]
        return await store.dead_letters(
            origin=self.origin,
            workflow=await resolve_workflow_id(client, self.workflow) if self.workflow else None,
            cause=self.cause,
            since=parse_time(self.since),
            until=parse_time(self.until),
            limit=self.limit,
        )


@broker_command
async def list_(
    session: Session,
    origin: _Origin = None,
    workflow: OfWorkflow = None,
    cause: _Cause = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[int, typer.Option(min=1, help="The maximum number of dead letters.")] = 100,
    json: Json = False,
) -> None:
    """List dead letters, oldest first."""
    letters = LetterFilter((), True, origin, workflow, cause, since, until, limit)

    async with session() as client:
        found = await letters.find(client)
        explanation = "" if found else await _explain_no_letters(letters, client)
    documents = [letter.content for letter in found]
    print_list(documents, lambda terminal: dead_letter_table(found, terminal.width), explanation, json=json)


async def _explain_no_letters(letters: LetterFilter, client: Client) -> str:
    """Explain an empty list. If no dead letter has the cause, list all causes, because it might be misspelled."""
    if letters.cause and (others := await replace(letters, cause=None, limit=_MAX_COUNTED).find(client)):
        kinds = Counter(letter.content.cause.kind for letter in others)
        listed = ", ".join(f"{escape_control(kind)} ({count})" for kind, count in kinds.most_common())
        return f"No dead letter has the cause {letters.cause}. Causes: {listed}."
    if await client.operations.dead_letters(limit=1):
        return "No dead letter matches. `pointsman dead list` shows all."
    return "No dead letters."


@broker_command
async def show(
    session: Session,
    id: Annotated[str, typer.Argument(metavar="ID", help="Id of a dead letter, or a unique beginning of the id.")],
    json: Json = False,
) -> None:
    """Show the cause and the message of a dead letter."""
    async with session() as client:
        letter = await resolve_dead_letter(client.operations, id)
        suggestion = "" if json else await _suggested_command(client, letter)
    if json:
        print_json(_letter_as_json(letter))
        return
    terminal, content = console(), letter.content
    print_table(terminal, dead_letter_table([letter], terminal.width))
    print_prose(terminal, f"\n{content.cause.kind}: {escape_control(content.cause.for_operators)}", style="red")
    print_prose(terminal, f"\nSubject  {escape_control(content.subject)}")
    for header, value in content.headers.items():
        print_prose(terminal, f"{escape_control(header)}: {escape_control(value)}", style="dim")
    print_prose(terminal, "\n" + body_text(letter.decoded))
    print_hint(terminal, f"\n{suggestion}")


@broker_command
async def replay(
    session: Session,
    ids: _Ids = None,
    all: _All = False,
    origin: _Origin = None,
    workflow: OfWorkflow = None,
    cause: _Cause = None,
    since: Since = None,
    until: Until = None,
    limit: _Limit = None,
    as_new: Annotated[
        bool,
        typer.Option(
            "--as-new",
            help="Send the request of the workflow again, as a new workflow. If the dead letter is a task, its agent "
            "must be live.",
        ),
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the dead letter after the replay.")] = False,
    yes: _Yes = False,
    json: Json = False,
) -> Code:
    """Process the messages of dead letters again.

    Give ids or filters. A replayed dead letter is deleted. Replaying a dead letter twice has the effect of one replay.

    Returns:
        The exit code.
    """
    letters = LetterFilter(ids or (), all, origin, workflow, cause, since, until, limit)
    done_texts = {"request": "sent again as", "task": "reopened in", "event": "published again for"}

    async def replay_letter(store: Operations, letter: DeadLetterEntry) -> _LetterResult:
        try:
            done = await store.replay(letter, as_new=as_new, keep=keep)
        except (NotReplayableError, NotFoundError) as error:
            data = {"letter": letter.content.id, "refused": str(error)}
            return _LetterResult("refused", data, str(error), code_for(error))
        line = f"{done.letter}: {done_texts[done.action]} {done.workflow}; `pointsman watch {done.workflow}`"
        return _LetterResult("replayed", asdict(done), with_connection_options(line))

    return await _apply(session, "Replay", letters, replay_letter, yes=yes, json=json)


@broker_command
async def discard(
    session: Session,
    ids: _Ids = None,
    all: _All = False,
    origin: _Origin = None,
    workflow: OfWorkflow = None,
    cause: _Cause = None,
    since: Since = None,
    until: Until = None,
    limit: _Limit = None,
    yes: _Yes = False,
    json: Json = False,
) -> Code:
    """Delete dead letters permanently.

    Give ids or filters.

    Returns:
        The exit code.
    """
    letters = LetterFilter(ids or (), all, origin, workflow, cause, since, until, limit)

    async def discard_letter(store: Operations, letter: DeadLetterEntry) -> _LetterResult:
        deleted, id = await store.discard(letter), letter.content.id
        result = "discarded" if deleted else "already deleted"
        return _LetterResult(result, {"letter": id, "discarded": deleted}, f"{id}: {result}")

    return await _apply(session, "Discard", letters, discard_letter, yes=yes, ask=True, json=json)


@dataclass(frozen=True, slots=True)
class _LetterResult:
    """The result of a command for one dead letter: an outcome for totals, data for programs, and a line for people."""

    outcome: str
    data: dict[str, Any]
    line: str
    code: Code | None = None


async def _apply(
    session: Session,
    verb: str,
    letters: LetterFilter,
    function: Callable[[Operations, DeadLetterEntry], Awaitable[_LetterResult]],
    *,
    yes: bool,
    ask: bool = False,
    json: bool,
) -> Code:
    """Apply a function to all selected dead letters, in batches. Print each result and, at the end, the totals."""
    if bool(letters.ids) == letters.has_filter:
        raise ConfigurationError(
            "give either ids of dead letters or filters: --origin, --workflow, --cause, --since, --until, --all"
        )
    totals: Counter[str] = Counter()
    worst = Code.OK
    async with session() as client:
        store = client.operations
        chosen = await letters.find(client)
        if not chosen:
            raise NotFoundError("no dead letter matches; `pointsman dead list` shows all")
        if not yes and (ask or letters.has_filter) and not await asyncio.to_thread(_confirm, verb, len(chosen)):
            print_error("not confirmed; nothing was changed")
            return Code.FAILED
        try:
            for start in range(0, len(chosen), MAX_CONCURRENT_REPLAYS):
                batch = chosen[start : start + MAX_CONCURRENT_REPLAYS]
                for result in await asyncio.gather(*(function(store, each) for each in batch)):
                    totals[result.outcome] += 1
                    worst = max(worst, result.code or Code.OK)
                    if json:
                        print_json(result.data)
                    elif result.outcome == "refused":
                        print_error(result.line)
                    else:
                        print(result.line)
        finally:
            if len(chosen) > 1 and not json:
                listed = ", ".join(f"{count} {outcome}" for outcome, count in totals.items())
                print(f"{listed or 'nothing done'} of {len(chosen)}")
    return worst


async def _suggested_command(client: Client, letter: DeadLetterEntry) -> str:
    """Suggest the next command for a dead letter, by its origin and by the state of its workflow."""
    id, workflow = letter.content.id, letter.content.workflow_id
    if letter.imported_from is not None:
        return (
            f"The dead letter was imported from the namespace {letter.imported_from}, for reading. "
            f"`pointsman dead discard {id}` deletes it."
        )
    if letter.content.subject.startswith(f"{client.subjects.namespace}.request."):
        return (
            f"`pointsman dead replay {id}` sends the request again unchanged, as a new workflow. A request that cannot "
            "be read becomes a dead letter again."
        )
    if workflow is None:
        return f"The message belongs to no workflow. `pointsman dead discard {id}` deletes it."
    try:
        newest = (await newest_commit(client.bus, client.subjects, workflow)).commit
    except NotFoundError:
        return f"The workflow no longer exists. `pointsman dead discard {id}` deletes the dead letter."
    if any(isinstance(entry, WorkflowEnded) for entry in newest.entries):
        return (
            f"The workflow has ended. `pointsman resume {workflow}` does its failed tasks again. "
            f"`pointsman dead replay {id} --as-new` sends its request again, as a new workflow."
        )
    return f"`pointsman dead replay {id}` processes the message again."


def _confirm(verb: str, count: int) -> bool:
    permanently = " permanently" if verb == "Discard" else ""
    try:
        return typer.confirm(f"{verb} {count} dead letter{'' if count == 1 else 's'}{permanently}?", err=True)
    except typer.Abort:  # standard input is closed, so there is no answer
        raise ConfigurationError("no confirmation on standard input; nothing was changed; use --yes") from None


def _letter_as_json(letter: DeadLetterEntry) -> dict[str, Any]:
    return {**letter.content.model_dump(mode="json", exclude_none=True), "decoded": letter.decoded}
