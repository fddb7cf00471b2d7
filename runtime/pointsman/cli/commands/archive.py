"""The commands that take a workflow elsewhere: export, import, replay."""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime
from pathlib import Path

from pydantic import JsonValue

from pointsman.cli.render.output import Code, one_line, print_json, write_json
from pointsman.cli.support.ids import resolve_workflow_id
from pointsman.cli.support.session import session
from pointsman.core.replay.replayer import Difference, replay_log
from pointsman.engine.operations.archive import (
    Archive,
    commits_of,
    export_workflow,
    flatten,
    import_workflow,
    read_archive,
)
from pointsman.errors import ConfigurationError
from pointsman_schemas.log import Commit, Entry

__all__ = ["export", "import_", "replay"]


def export(given: str, file: str, *, url: str | None, namespace: str | None, json: bool) -> Code:
    async def run() -> Code:
        async with session(url, namespace) as client:
            workflow = await resolve_workflow_id(client, given)
            archive = await export_workflow(client.bus, client.subjects, workflow, datetime.now(UTC))
        messages, others = sum(len(each.records) for each in flatten(archive)), len(list(flatten(archive))) - 1
        text = archive.model_dump_json(indent=1) + "\n"
        write_json(file, text)
        if file == "-":
            pass  # it is the output
        elif json:
            print_json({"workflow_id": workflow, "file": file, "messages": messages, "children": others})
        else:
            below = f" and the {others} below it" if others else ""
            print(f"{messages} messages about {workflow}{below} are in {file}. `pointsman replay {file}` judges "
                  "them by the present code; `pointsman import` puts them into another namespace.")  # fmt: skip
        return Code.OK

    return asyncio.run(run())


def import_(file: str, *, url: str | None, namespace: str | None, json: bool) -> Code:
    archive = read_archive(_read_archive(file))
    if not isinstance(archive, Archive):
        raise ConfigurationError(f"{file} is a bare log; give a file that `pointsman export` wrote")

    async def run() -> Code:
        async with session(url, namespace, create=True) as client:
            count = await import_workflow(client.bus, client.subjects, archive)
            where = client.subjects.namespace
        if json:
            print_json({"workflow_id": archive.workflow_id, "namespace": where, "messages": count})
        else:
            print(f"{archive.workflow_id} can be looked at in {where}, and nothing there acts on it: "
                  f"`pointsman show {archive.workflow_id} --namespace {where}`.")  # fmt: skip
        return Code.OK

    return asyncio.run(run())


def replay(file: str, *, json: bool) -> Code:
    found = read_archive(_read_archive(file))
    logs: list[tuple[str, list[Commit]]] = (
        [(each.workflow_id, list(commits_of(each))) for each in flatten(found)]
        if isinstance(found, Archive)
        else [("", list(found))]
    )
    commits = [commit for _, log in logs for commit in log]
    if not logs[0][1]:
        raise ConfigurationError(f"{file} holds no log; export the workflow again, before its log has aged out")
    differences = [(workflow, each) for workflow, log in logs for each in replay_log(log)]
    if (unjudged := sum(commit.decision_context is None for commit in commits)) == len(commits):
        raise ConfigurationError(f"{file} does not say what its commits were decided upon: it was written by an "
                                 "earlier version, replay it with that one")  # fmt: skip
    entries = sum(len(commit.entries) for commit in commits)
    if json:
        for workflow, each in differences:
            print_json({"workflow_id": workflow or None, "entry": each.entry, "commit": each.commit,
                  "expected": each.expected, "got": each.actual})  # fmt: skip
        print_json({"workflows": len(logs), "entries": entries, "commits": len(commits),
              "not_judged": unjudged, "differences": len(differences)})  # fmt: skip
    else:
        for workflow, each in differences:
            print(_describe_difference(each, workflow if len(logs) > 1 else ""))
        which = "the rest" if unjudged else "all of it"
        same = f"the present code decides {which} as it was decided" if not differences else (
            f"the present code decides {len(differences)} of them otherwise")  # fmt: skip
        if unjudged:
            same = f"{unjudged} commits do not say what they were decided upon and were not judged; {same}"
        several = f"{len(logs)} workflows, " if len(logs) > 1 else ""
        print(f"{several}{len(commits)} commits, {entries} entries; {same}.")
    return Code.FAILED if differences else Code.OK


def _describe_difference(difference: Difference, workflow: str) -> str:
    expected, got = difference.expected, difference.actual
    where = f"{workflow + ', ' if workflow else ''}entry {difference.entry}, in commit {difference.commit}"
    if expected is None or got is None or expected.kind != got.kind:
        return f"{where}: expected {_entry_summary(expected)}\n    got {_entry_summary(got)}"
    before, after = expected.model_dump(mode="json"), got.model_dump(mode="json")
    changed = [name for name in before if before[name] != after.get(name)]
    rows = [f"    {name}: expected {_format_value(before[name])}\n{' ' * len(name)}      got     "
    f" {_format_value(after[name])}"
            for name in changed]  # fmt: skip
    return "\n".join([f"{where}: {expected.kind}", *rows])


def _entry_summary(entry: Entry | None) -> str:
    if entry is None:
        return "nothing more"
    said = entry.model_dump(mode="json", exclude={"kind", "at"}, exclude_defaults=True)
    return f"{entry.kind} {_format_value(said)}"


def _format_value(value: JsonValue) -> str:
    return one_line(str(value), limit=160)


def _read_archive(file: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be read: {error.strerror or error}") from None
