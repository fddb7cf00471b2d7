"""The command batch, which sends the requests of a file and writes one result in each line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Annotated, Protocol

import typer

from pointsman.cli.arguments import Deadline
from pointsman.cli.render.output import Code, console, one_line, print_error
from pointsman.cli.support.session import Session, broker_command
from pointsman.client.batch import BatchRow, run_batch
from pointsman.client.batch_files import BatchRecord, Mapper, RequestFile
from pointsman.client.known_teams import unknown_team_hint

__all__ = ["batch"]


@broker_command
async def batch(
    session: Session,
    team: Annotated[str, typer.Argument(help="The name of the team.")],
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The requests: a .csv file with a header, or a .jsonl file.")
    ],
    map: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            metavar="COLUMN",
            help="The column with the text of the request. If the request is an object: FIELD=COLUMN for each field. "
            "Default: an object of all columns, or the text of the only column.",
        ),
    ] = None,
    concurrency: Annotated[
        int, typer.Option(metavar="N", min=1, max=1_000, help="Largest number of workflows that run at a time.")
    ] = 10,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The file for the results, one JSON object in each line. A repeated command skips the rows that are "
            "in the file. Default: standard output; a repeated command then writes all results again.",
        ),
    ] = None,
    deadline: Deadline = None,
) -> Code:
    """Send the rows of a file to a team, and write the results.

    After Ctrl-C, or if the broker is lost, the same command continues the batch. No row is done twice.

    Returns:
        The exit code.
    """
    requests = RequestFile.open(file, Mapper.from_options(map or []))
    record = BatchRecord(out, requests.batch_id(team))
    try:
        async with session(create=True) as client:
            if hint := await unknown_team_hint(client, team):
                print_error(f"the requests wait for a supervisor: {hint}")
            rows = run_batch(
                client,
                team,
                requests.requests(),
                batch_id=requests.batch_id(team),
                concurrency=concurrency,
                skip=record.ended,
                deadline=deadline,
            )
            _print_earlier_failures(record)
            with _progress(requests.rows, record) as shown:
                async with aclosing(rows):
                    async for row in rows:
                        record.add(row)
                        shown.on_row(row)
        return Code.OK if record.completed == requests.rows else Code.FAILED
    finally:
        record.close()
        print_error(_summary(requests, record))


def _print_earlier_failures(record: BatchRecord) -> None:
    """Print the rows that did not complete in an earlier run, because this run does not do these rows again."""
    shown = record.earlier_failures
    for each in shown:
        sent = f"ended as {each.status} in an earlier run" if each.workflow_id else "was not sent in an earlier run"
        workflow = f" ({each.workflow_id})" if each.workflow_id else ""
        print_error(f"row {each.row} {sent}: {one_line(each.reason, limit=400)}{workflow}")
    if more := len(record.ended) - record.completed - len(shown):
        print_error(f"{more} more rows did not complete in an earlier run; {record.path} has the reasons")


def _summary(requests: RequestFile, record: BatchRecord) -> str:
    done, left = len(record.ended), requests.rows - len(record.ended)
    text = f"{done} of {requests.rows} rows have ended, {record.completed} completed{_usage_text(record)}"
    if left and record.path is not None:
        return f"{text}; the same command does the remaining {left}"
    return text


def _usage_text(record: BatchRecord) -> str:
    tokens = f", {record.tokens:,} tokens" if record.tokens else ""
    return f"{tokens}, ${record.cost:,.4f}" if record.cost else tokens


class _Progress(Protocol):
    def on_row(self, row: BatchRow) -> None: ...


class _Lines:
    """Progress for a file or a pipe. It prints a line for each row that did not complete."""

    def on_row(self, row: BatchRow) -> None:
        if problem := _problem(row):
            print_error(problem)


@contextmanager
def _progress(rows: int, record: BatchRecord) -> Iterator[_Progress]:
    """Show a progress bar on a terminal, and the rows that did not complete."""
    terminal = console(stderr=True)
    if not terminal.is_terminal:
        yield _Lines()
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=terminal) as bar:
        task = bar.add_task(_usage_text(record).strip(", "), total=rows, completed=len(record.ended))

        class Bar:
            def on_row(self, row: BatchRow) -> None:
                if problem := _problem(row):
                    bar.console.print(problem, markup=False, highlight=False, soft_wrap=True)
                bar.update(task, completed=len(record.ended), description=_usage_text(record).strip(", "))

        yield Bar()


def _problem(row: BatchRow) -> str:
    """Return a line about a row that did not complete; empty for a completed row."""
    if row.status == "completed":
        return ""
    problem = one_line(row.problem, limit=400)
    return (
        f"row {row.row} was not sent: {problem}"
        if row.outcome is None
        else (f"row {row.row} is {row.status}: {problem} ({row.workflow_id})")
    )
