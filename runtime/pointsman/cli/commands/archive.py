"""The commands for archives: export, import, replay."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from pydantic import JsonValue

from pointsman.cli.arguments import Json, WorkflowId
from pointsman.cli.render.output import Code, one_line, print_json, write_json
from pointsman.cli.support.ids import resolve_workflow_id
from pointsman.cli.support.session import Execution, Session, broker_command
from pointsman.core.replay.replayer import Difference, replay_log
from pointsman.engine.operations.archive import Archive, flatten
from pointsman.engine.operations.archive_export import export_workflow
from pointsman.engine.operations.archive_import import import_workflow
from pointsman.engine.operations.archive_reader import commits_of, read_archive
from pointsman.errors import ConfigurationError
from pointsman_schemas.log import Commit, Entry

__all__ = ["export", "import_", "replay"]


@broker_command
async def export(
    session: Session,
    workflow: WorkflowId,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write; - for standard output.")],
    json: Json = False,
) -> Code:
    """Write a workflow and its child workflows to a file.

    The file has the logs, events, handoffs, results, outcomes and dead letters.

    Returns:
        The exit code.
    """
    async with session() as client:
        id = await resolve_workflow_id(client, workflow)
        archive = await export_workflow(client.bus, client.subjects, id, datetime.now(UTC))
    messages, children = sum(len(each.records) for each in flatten(archive)), len(list(flatten(archive))) - 1
    write_json(str(file), archive.model_dump_json(indent=1) + "\n")
    if str(file) == "-":
        return Code.OK  # print nothing more, because standard output must contain only the archive
    if json:
        print_json({"workflow_id": id, "file": str(file), "messages": messages, "children": children})
    else:
        others = f" and its {children} child workflow{'' if children == 1 else 's'}" if children else ""
        print(
            f"Wrote {messages} messages of {id}{others} to {file}. To check whether the installed code makes the same "
            f"decisions, run `pointsman replay {file}`. To load the messages into another namespace, run `pointsman "
            f"import {file} --namespace NAME`."
        )
    return Code.OK


@broker_command
def import_(
    session: Session,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A file that `pointsman export` wrote; - for standard input.")
    ],
    json: Json = False,
) -> Execution:
    """Load an exported workflow into a namespace, for reading.

    The workflow keeps its id. No supervisor continues it.

    Raises:
        ConfigurationError: The file contains only the commits of a log, and not a whole exported workflow.

    Returns:
        The coroutine of the command.
    """
    archive = read_archive(_read_file(file))
    if not isinstance(archive, Archive):
        raise ConfigurationError(
            f"{file} contains only the commits of a log, and not a whole exported workflow; give a file that "
            "`pointsman export` wrote"
        )

    async def run() -> None:
        async with session(create=True) as client:
            count = await import_workflow(client.bus, client.subjects, archive)
            target = client.subjects.namespace
        if json:
            print_json({"workflow_id": archive.workflow_id, "namespace": target, "messages": count})
        else:
            print(
                f"Loaded {archive.workflow_id} into the namespace {target}, for reading: "
                f"`pointsman show {archive.workflow_id} --namespace {target}`."
            )

    return run()


def replay(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="A file that `pointsman export` wrote, or a log; - for standard input."),
    ],
    json: Json = False,
) -> Code:
    """Replay an exported workflow, and compare the decisions.

    The installed code makes the decisions of the workflow again, and each difference from the recorded decisions is
    printed. If there is a difference, the exit code is 1. No broker is needed.

    Returns:
        The exit code.

    Raises:
        ConfigurationError: The file has no log, or the log does not have the inputs of the decisions.
    """
    archive = read_archive(_read_file(file))
    logs: list[tuple[str, list[Commit]]] = (
        [(each.workflow_id, list(commits_of(each))) for each in flatten(archive)]
        if isinstance(archive, Archive)
        else [("", list(archive))]
    )
    commits = [commit for _, log in logs for commit in log]
    skipped = sum(commit.decision_context is None for commit in commits)
    if skipped == len(commits):
        raise ConfigurationError(
            f"{file} was written by an earlier version, without the inputs of its decisions; replay it with that "
            "version"
        )
    differences = [(workflow, each) for workflow, log in logs for each in replay_log(log)]
    entries = sum(len(commit.entries) for commit in commits)
    if json:
        for workflow, each in differences:
            place = {"workflow_id": workflow or None, "entry": each.entry, "commit": each.commit}
            print_json({**place, "expected": each.expected, "got": each.actual})
        counts = {"workflows": len(logs), "entries": entries, "commits": len(commits)}
        print_json({**counts, "not_judged": skipped, "differences": len(differences)})
    else:
        for workflow, each in differences:
            print(_describe_difference(each, workflow if len(logs) > 1 else ""))
        several = f"{len(logs)} workflows, " if len(logs) > 1 else ""
        note = f"{skipped} commits without inputs were skipped; " if skipped else ""
        count = (
            f"{len(differences)} difference{'' if len(differences) == 1 else 's'}" if differences else "no difference"
        )
        print(f"{several}{len(commits)} commits, {entries} entries; {note}{count} with the installed code.")
    return Code.FAILED if differences else Code.OK


def _describe_difference(difference: Difference, workflow: str) -> str:
    expected, actual = difference.expected, difference.actual
    place = f"{workflow + ', ' if workflow else ''}entry {difference.entry}, in commit {difference.commit}"
    if expected is None or actual is None or expected.kind != actual.kind:
        return f"{place}: expected {_entry_summary(expected)}\n    got {_entry_summary(actual)}"
    before, after = expected.model_dump(mode="json"), actual.model_dump(mode="json")
    rows = [
        f"    {name}: expected {_format_value(before[name])}\n"
        f"    {'':{len(name)}}  got      {_format_value(after.get(name))}"
        for name in before
        if before[name] != after.get(name)
    ]
    return "\n".join([f"{place}: {expected.kind}", *rows])


def _entry_summary(entry: Entry | None) -> str:
    if entry is None:
        return "no entry"
    fields = entry.model_dump(mode="json", exclude={"kind", "at"}, exclude_defaults=True)
    return f"{entry.kind} {_format_value(fields)}"


def _format_value(value: JsonValue) -> str:
    return one_line(str(value), limit=160)


def _read_file(file: Path) -> bytes:
    try:
        return sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"{file} cannot be read: {error.strerror or error}; give a file that `pointsman export` wrote"
        ) from None
