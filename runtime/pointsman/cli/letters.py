"""The commands about dead letters: list, show, replay, discard."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import typer

from pointsman.cli import render
from pointsman.cli.output import Code, clean, code_for, complain, console, emit, hint, prose
from pointsman.cli.session import session
from pointsman.client import Client
from pointsman.engine.dead_letters import DeadLetters, Letter, NotReplayable
from pointsman.engine.history import newest_commit
from pointsman.errors import ConfigurationError, NotFound
from pointsman_schemas.log import WorkflowEnded

__all__ = ["discard", "list_", "replay", "show"]


def list_(
    *, origin: str | None, workflow: str | None, limit: int, url: str | None, namespace: str | None, json: bool
) -> Code:
    async def run() -> Code:
        async with session(url, namespace) as client:
            found = await DeadLetters(client.bus, client.subjects).list(origin=origin, workflow=workflow, limit=limit)
        if json:
            for letter in found:
                emit(letter.content)
        elif found:
            terminal = console()
            terminal.print(render.letters(found, terminal.width))
        else:
            print("No dead letters.")
        return Code.OK

    return asyncio.run(run())


def show(name: str, *, url: str | None, namespace: str | None, json: bool) -> Code:
    async def run() -> Code:
        async with session(url, namespace) as client:
            letter = await DeadLetters(client.bus, client.subjects).get(name)
            advice = "" if json else await _way_back(client, letter)
        if json:
            emit(_whole(letter))
        else:
            terminal, it = console(), letter.content
            terminal.print(render.letters([letter], terminal.width))
            prose(terminal, f"\n{it.cause.kind}: {clean(it.cause.message)}", style="red")
            prose(terminal, f"\nSubject  {clean(it.subject)}")
            for header, value in it.headers.items():
                prose(terminal, f"{clean(header)}: {clean(value)}", style="dim")
            prose(terminal, "\n" + render.text_of(letter.decoded, pretty=True))
            hint(terminal, f"\n{advice}")
        return Code.OK

    return asyncio.run(run())


def replay(
    ids: Sequence[str], *, origin: str | None, workflow: str | None, as_new: bool, keep: bool, url: str | None,
    namespace: str | None, json: bool,
) -> Code:  # fmt: skip
    _need_a_choice(ids, origin, workflow)

    async def run() -> Code:
        worst = Code.OK
        async with session(url, namespace) as client:
            store = DeadLetters(client.bus, client.subjects)
            for letter in await _chosen(store, ids, origin, workflow):
                try:
                    done = await store.replay(letter, as_new=as_new, keep=keep)
                except (NotReplayable, NotFound) as error:
                    complain(str(error))
                    worst = max(worst, code_for(error) or Code.FAILED)
                    continue
                if json:
                    emit(done)
                else:
                    what = {"request": "sent again as", "task": "reopened in", "event": "published again for"}
                    print(f"{done.letter}: {what[done.action]} {done.workflow}; `pointsman watch {done.workflow}`")
        return worst

    return asyncio.run(run())


def discard(
    ids: Sequence[str], *, origin: str | None, workflow: str | None, yes: bool, url: str | None, namespace: str | None,
    json: bool,
) -> Code:  # fmt: skip
    _need_a_choice(ids, origin, workflow)

    async def run() -> Code:
        async with session(url, namespace) as client:
            store = DeadLetters(client.bus, client.subjects)
            chosen = await _chosen(store, ids, origin, workflow)
            if not yes and not await asyncio.to_thread(_agreed, len(chosen)):
                complain("nothing was discarded")
                return Code.FAILED
            for letter in chosen:
                gone = await store.discard(letter)
                if json:
                    emit({"letter": letter.content.id, "discarded": gone})
                else:
                    print(f"{letter.content.id}: {'discarded' if gone else 'was gone already'}")
        return Code.OK

    return asyncio.run(run())


async def _way_back(client: Client, letter: Letter) -> str:
    """The command that can work now: an ended workflow does not go on, its request can only be sent again."""
    it = letter.content
    if it.workflow_id is not None:
        try:
            _, newest = await newest_commit(client.bus, client.subjects, it.workflow_id)
        except NotFound:
            if not it.subject.startswith(f"{client.subjects.namespace}.request."):
                return f"Its workflow is gone. `pointsman dead discard {it.id}` removes it."
        else:
            if any(isinstance(entry, WorkflowEnded) for entry in newest.entries):
                return (
                    f"Its workflow has ended. `pointsman dead replay {it.id} --as-new` sends the request again, as a "
                    "new workflow."
                )
    return f"`pointsman dead replay {it.id}` gives it another chance."


async def _chosen(store: DeadLetters, ids: Sequence[str], origin: str | None, workflow: str | None) -> Sequence[Letter]:
    if ids:
        return [await store.get(name) for name in ids]
    found = await store.list(origin=origin, workflow=workflow)
    if not found:
        raise NotFound("no dead letter fits; `pointsman dead list` shows the ones there are")
    return found


def _need_a_choice(ids: Sequence[str], origin: str | None, workflow: str | None) -> None:
    if bool(ids) == bool(origin or workflow):
        raise ConfigurationError("name dead letters by their ids, or choose them with --origin or --workflow")


def _agreed(count: int) -> bool:
    try:
        return typer.confirm(f"Discard {count} dead letter{'' if count == 1 else 's'} for good?", err=True)
    except typer.Abort:  # standard input has no answer
        raise ConfigurationError("nobody answers, so nothing was discarded; use --yes to discard unasked") from None


def _whole(letter: Letter) -> dict[str, Any]:
    return {**letter.content.model_dump(mode="json", exclude_none=True), "decoded": letter.decoded}
