"""The commands about dead letters: list, show, replay, discard."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import typer

from pointsman.cli.render import outcome
from pointsman.cli.render.output import (
    Code,
    code_for,
    console,
    escape_control,
    print_error,
    print_hint,
    print_json,
    print_prose,
    print_table,
)
from pointsman.cli.support.ids import resolve_dead_letter, resolve_workflow_id
from pointsman.cli.support.session import session
from pointsman.client.client import Client
from pointsman.client.operations import Operations
from pointsman.engine.log.reader import newest_commit
from pointsman.engine.operations.dead_letters import (
    MAX_CONCURRENT_REPLAYS,
    DeadLetterEntry,
    NotReplayableError,
)
from pointsman.errors import ConfigurationError, NotFoundError
from pointsman_schemas.log import WorkflowEnded

__all__ = ["LetterFilter", "discard", "list_", "replay", "show"]

_MAX_COUNTED = 1_000  # dead letters whose causes are named where one asked for is not there
_AGE_PATTERN = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


@dataclass(frozen=True, slots=True)
class LetterFilter:
    """Which dead letters a command is about: those with these ids, or all that fit the rest. Times are as they were
    given: an instant, or an age such as 90s, 15m, 2h or 3d."""

    ids: Sequence[str] = ()
    all: bool = False
    origin: str | None = None
    workflow: str | None = None
    cause: str | None = None
    since: str | None = None
    until: str | None = None
    limit: int | None = None

    @property
    def filters(self) -> bool:
        return self.all or any((self.origin, self.workflow, self.cause, self.since, self.until))

    async def find(self, client: Client) -> Sequence[DeadLetterEntry]:
        """Raises `NotFoundError` when there are none, `ConfigurationError` for a time that cannot be read or
        the beginning of several ids."""
        store = client.operations
        if self.ids:
            return [await resolve_dead_letter(store, name) for name in self.ids]
        return await store.dead_letters(
            origin=self.origin,
            workflow=await resolve_workflow_id(client, self.workflow) if self.workflow else None,
            cause=self.cause,
            since=_parse_time(self.since),
            until=_parse_time(self.until),
            limit=self.limit,
        )


def list_(choice: LetterFilter, *, url: str | None, namespace: str | None, json: bool) -> Code:
    async def run() -> Code:
        async with session(url, namespace) as client:
            found = await choice.find(client)
            none = "" if found else await _explain_no_letters(choice, client)
        if json:
            for letter in found:
                print_json(letter.content)
        elif found:
            terminal = console()
            print_table(terminal, outcome.dead_letter_table(found, terminal.width))
        else:
            print(none)
        return Code.OK

    return asyncio.run(run())


async def _explain_no_letters(choice: LetterFilter, client: Client) -> str:
    """What there is instead: a cause may be mistyped."""
    if choice.cause and (others := await replace(choice, cause=None, limit=_MAX_COUNTED).find(client)):
        kinds = Counter(letter.content.cause.kind for letter in others)
        there = ", ".join(f"{escape_control(kind)} ({count})" for kind, count in kinds.most_common())
        return f"None with cause {choice.cause}; causes there are: {there}."
    if await client.operations.dead_letters(limit=1):
        return "No dead letter fits; `pointsman dead list` shows the ones there are."
    return "No dead letters."


def show(name: str, *, url: str | None, namespace: str | None, json: bool) -> Code:
    async def run() -> Code:
        async with session(url, namespace) as client:
            letter = await resolve_dead_letter(client.operations, name)
            advice = "" if json else await _suggested_command(client, letter)
        if json:
            print_json(_letter_as_json(letter))
        else:
            terminal, it = console(), letter.content
            print_table(terminal, outcome.dead_letter_table([letter], terminal.width))
            print_prose(terminal, f"\n{it.cause.kind}: {escape_control(it.cause.message)}", style="red")
            print_prose(terminal, f"\nSubject  {escape_control(it.subject)}")
            for header, value in it.headers.items():
                print_prose(terminal, f"{escape_control(header)}: {escape_control(value)}", style="dim")
            print_prose(terminal, "\n" + outcome.body_text(letter.decoded))
            print_hint(terminal, f"\n{advice}")
        return Code.OK

    return asyncio.run(run())


def replay(
    choice: LetterFilter, *, as_new: bool, keep: bool, yes: bool, url: str | None, namespace: str | None, json: bool
) -> Code:
    async def one(store: Operations, letter: DeadLetterEntry) -> _LetterResult:
        try:
            done = await store.replay(letter, as_new=as_new, keep=keep)
        except (NotReplayableError, NotFoundError) as error:
            return _LetterResult(
                "refused", {"letter": letter.content.id, "refused": str(error)}, str(error), code_for(error)
            )
        what = {"request": "sent again as", "task": "reopened in", "event": "published again for"}
        line = f"{done.letter}: {what[done.action]} {done.workflow}; `pointsman watch {done.workflow}`"
        return _LetterResult("replayed", asdict(done), line)

    return asyncio.run(_apply_to_letters("Replay", choice, one, yes=yes, url=url, namespace=namespace, json=json))


def discard(choice: LetterFilter, *, yes: bool, url: str | None, namespace: str | None, json: bool) -> Code:
    async def one(store: Operations, letter: DeadLetterEntry) -> _LetterResult:
        gone, name = await store.discard(letter), letter.content.id
        said = "discarded" if gone else "gone already"
        return _LetterResult(said, {"letter": name, "discarded": gone}, f"{name}: {said}")

    return asyncio.run(
        _apply_to_letters("Discard", choice, one, yes=yes, ask=True, url=url, namespace=namespace, json=json)
    )


@dataclass(frozen=True, slots=True)
class _LetterResult:
    """What became of one letter, for the count, for machines and for people."""

    outcome: str
    data: dict[str, Any]
    line: str
    code: Code | None = None


async def _apply_to_letters(
    verb: str,
    choice: LetterFilter,
    one: Callable[[Operations, DeadLetterEntry], Awaitable[_LetterResult]],
    *,
    yes: bool,
    ask: bool = False,
    url: str | None,
    namespace: str | None,
    json: bool,
) -> Code:
    """Deal with every chosen letter, some at a time, telling of each as it is done, and of all in the end."""
    if bool(choice.ids) == choice.filters:
        raise ConfigurationError(
            "name dead letters by their ids, or choose them by --origin, --workflow, --cause, --since, --until or --all"
        )
    counts: Counter[str] = Counter()
    worst = Code.OK
    async with session(url, namespace) as client:
        store = client.operations
        chosen = await choice.find(client)
        if not chosen:
            raise NotFoundError("no dead letter fits; `pointsman dead list` shows the ones there are")
        if not yes and (ask or choice.filters) and not await asyncio.to_thread(_confirm, verb, len(chosen)):
            print_error("nothing was done")
            return Code.FAILED
        try:
            for start in range(0, len(chosen), MAX_CONCURRENT_REPLAYS):
                for done in await asyncio.gather(
                    *(one(store, each) for each in chosen[start : start + MAX_CONCURRENT_REPLAYS])
                ):
                    counts[done.outcome] += 1
                    worst = max(worst, done.code or Code.OK)
                    if json:
                        print_json(done.data)
                    elif done.outcome == "refused":
                        print_error(done.line)
                    else:
                        print(done.line)
        finally:
            if len(chosen) > 1 and not json:
                told = ", ".join(f"{count} {what}" for what, count in counts.items())
                print(f"{told or 'nothing done'} of {len(chosen)}")
    return worst


async def _suggested_command(client: Client, letter: DeadLetterEntry) -> str:
    """The command that can work now: an ended workflow does not go on, its request can only be sent again."""
    it = letter.content
    if it.subject.startswith(f"{client.subjects.namespace}.request."):
        return (
            f"`pointsman dead replay {it.id}` sends the request again as it is, as a new workflow. One that nobody can "
            "read becomes a dead letter again."
        )
    if it.workflow_id is None:
        return f"It names no workflow to go on with. `pointsman dead discard {it.id}` removes it."
    try:
        _, newest = await newest_commit(client.bus, client.subjects, it.workflow_id)
    except NotFoundError:
        return f"Its workflow is gone. `pointsman dead discard {it.id}` removes it."
    if any(isinstance(entry, WorkflowEnded) for entry in newest.entries):
        again = f"`pointsman dead replay {it.id} --as-new` sends the request again, as a new workflow."
        return f"Its workflow has ended. {again}"
    return f"`pointsman dead replay {it.id}` gives it another chance."


def _confirm(verb: str, count: int) -> bool:
    good = " for good" if verb == "Discard" else ""
    try:
        return typer.confirm(f"{verb} {count} dead letter{'' if count == 1 else 's'}{good}?", err=True)
    except typer.Abort:  # standard input has no answer
        raise ConfigurationError("nobody answers, so nothing was done; use --yes to go on unasked") from None


def _parse_time(text: str | None) -> datetime | None:
    if text is None:
        return None
    if (age := _AGE_PATTERN.fullmatch(text.strip())) is not None:
        return datetime.now(UTC) - timedelta(**{_UNITS[age[2]]: float(age[1])})
    try:
        instant = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ConfigurationError(
            f"the time is {text[:40]!r}; expected an age as 90s, 15m, 2h or 3d, or an instant as 2026-01-31T12:00:00Z"
        ) from None
    return instant if instant.tzinfo else instant.astimezone()


def _letter_as_json(letter: DeadLetterEntry) -> dict[str, Any]:
    return {**letter.content.model_dump(mode="json", exclude_none=True), "decoded": letter.decoded}
