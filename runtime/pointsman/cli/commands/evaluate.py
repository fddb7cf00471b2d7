"""The command eval, which runs a suite of labelled requests against live processes or against a local system."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from pointsman import app
from pointsman.cli.arguments import Json, Namespace, Url
from pointsman.cli.render.outcome import value_text
from pointsman.cli.render.output import (
    Code,
    console,
    one_line,
    print_error,
    print_event,
    print_hint,
    print_json,
    print_prose,
)
from pointsman.cli.support import local_system
from pointsman.cli.support.session import session, settings_for
from pointsman.client.client import Client
from pointsman.core.views.formatting import format_dollars, format_seconds
from pointsman.engine.process.discovery import load_agents
from pointsman.errors import ConfigurationError, NotFoundError
from pointsman.evaluation.runner import NO_AGENT, EvaluationReport, Suite, evaluate, load_suite

__all__ = ["evaluate_suite"]

_WAIT_NOTICE_AFTER_S = 3.0  # seconds to wait for a live process before a notice; a live process is found at once
_WAIT_TIMEOUT_S = 30.0  # longest wait in seconds for a live process; a process needs a few seconds to start
_POLL_INTERVAL_S = 0.1  # seconds between two checks for a live process


def evaluate_suite(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The suite, in YAML, JSON or Python.")],
    embedded: Annotated[
        bool, typer.Option("--embedded", help="Start a broker and the target of the suite, and stop them at the end.")
    ] = False,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="TARGET",
            help="Module or file.py for --embedded. Default: the target in the suite, relative to the suite's folder.",
            show_default=False,
        ),
    ] = None,
    parallel: Annotated[int, typer.Option(min=1, help="The number of cases that run at the same time.")] = 8,
    threshold: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="The share of cases that must be right, from 0 to 1. Default: the threshold in the suite, or 1.",
            show_default=False,
        ),
    ] = None,
    junit: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write the results to this file, as JUnit XML.", show_default=False),
    ] = None,
    url: Url = None,
    namespace: Namespace = None,
    json: Json = False,
) -> Code:
    """Run a suite of labelled requests and report the accuracy.

    The exit code is 1 if the accuracy is below the threshold.

    Returns:
        The exit code.
    """
    suite = load_suite(file)
    folder = None
    if target is not None:
        suite = suite.model_copy(update={"target": target})
    elif suite.target is not None:
        resolved, folder = _resolve_target(suite.target, file.resolve().parent)
        suite = suite.model_copy(update={"target": resolved})
    if threshold is not None:
        suite = suite.model_copy(update={"threshold": threshold})
    if junit is not None:
        _check_writable(junit)
    report = app.run(_evaluate(suite, folder, embedded=embedded, parallel=parallel, url=url, namespace=namespace))
    if junit is not None:
        junit.write_bytes(report.as_junit())
        print_error(f"wrote the results to {junit} as JUnit XML; cases: {len(report.results)}")
    if json:
        print_json(report.as_json())
    else:
        _print_report(report, kept=not embedded)
    return Code.OK if report.passed else Code.FAILED


def _resolve_target(target: str, folder: Path) -> tuple[str, Path | None]:
    """Resolve the target of a suite, relative to the suite's folder.

    Args:
        target: A module or a file, with or without a name.
        folder: The folder of the suite.

    Returns:
        The target, with an absolute path if the target is a file. Also the folder, if the target is a module in the
        folder.
    """
    place, colon, name = target.partition(".py:")
    if colon or target.endswith(".py"):
        path = Path(f"{place}.py" if colon else place).expanduser()
        return f"{folder / path}:{name}" if colon else str(folder / path), None
    top = target.partition(":")[0].partition(".")[0]
    found = (folder / f"{top}.py").is_file() or (folder / top).is_dir()
    return target, folder if found else None


async def _evaluate(
    suite: Suite, folder: Path | None, *, embedded: bool, parallel: int, url: str | None, namespace: str | None
) -> EvaluationReport:
    async with AsyncExitStack() as stack:
        if embedded:
            if suite.target is None:
                raise ConfigurationError(
                    "--embedded has nothing to start: the suite has no `target`; add one, or give --target, a module "
                    "or file.py"
                )
            _check_defined(suite, suite.target)
            home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pointsman-eval-")))
            local_system.ignore_connection_settings()
            settings = settings_for(None, namespace)
            client = await stack.enter_async_context(
                local_system.local_system(suite.target, settings, home, team=bool(suite.team), search_path=folder)
            )
        else:
            client = await stack.enter_async_context(session(url, namespace, create=True))
            await _wait_until_served(client, suite)
        return await evaluate(suite, client, parallel=parallel)


def _check_writable(junit: Path) -> None:
    """Check that the file can be written, before any model call is paid for."""
    try:
        junit.open("ab").close()
    except OSError as error:
        raise ConfigurationError(
            f"{junit} cannot be written: {error.strerror}; give --junit a file in a folder that exists"
        ) from None


def _check_defined(suite: Suite, target: str) -> None:
    """Check that the target defines the team or the agent of the suite, before any process starts."""
    if suite.team:
        kind, defined = "team", {each.name for each in app.load_teams(target)}
    else:
        kind, defined = "agent", {each.card.name for each in load_agents([target])}
    if (wanted := suite.team or suite.agent) not in defined:
        raise ConfigurationError(
            f"{target} does not define the {kind} {wanted} of the suite; it defines {', '.join(sorted(defined))}"
        )


async def _wait_until_served(client: Client, suite: Suite) -> None:
    """Wait until the team or the agent is live. Without this wait, the requests could stay in the stream and run later.

    Raises:
        NotFoundError: The team or the agent is not live after 30 seconds.
    """
    name = suite.team or suite.agent
    awaited = f"a supervisor of team {name}" if suite.team else f"the agent {name}"
    began, noticed = asyncio.get_running_loop().time(), False
    while name not in {card.name for card in await client.bus.registry.cards() if card.team or not suite.team}:
        waited = asyncio.get_running_loop().time() - began
        if waited >= _WAIT_NOTICE_AFTER_S and not noticed:
            noticed = True
            check = f"pointsman doctor {name}" if suite.team else "pointsman agents"
            print_error(f"waiting for {awaited}; check with `{check}`, or use --embedded")
        if waited >= _WAIT_TIMEOUT_S:
            command = f"pointsman {'supervisor' if suite.team else 'worker'} {suite.target or 'module:name'}"
            raise NotFoundError(
                f"{awaited} is not live after {_WAIT_TIMEOUT_S:.0f} s; no request was sent; start it with `{command}`, "
                "or use --embedded"
            )
        await asyncio.sleep(_POLL_INTERVAL_S)


def _print_report(report: EvaluationReport, *, kept: bool) -> None:
    """Print the results. `kept` is True if the workflows still exist after the command."""
    terminal = console()
    for each in report.results:
        mark, style = ("✗", "red") if each.problems else ("✓", "green")
        line = Text(f"{mark} {one_line(each.name, limit=100)}", style=style)
        terminal.print(line.append(f"  {format_seconds(each.elapsed)}", style="dim"))
        for problem in each.problems:
            print_prose(terminal, f"    {one_line(problem, limit=400)}")
        if each.problems and each.answer is not None:
            print_event(terminal, Text("    answer: "), Text(one_line(value_text(each.answer))), 12)
        if kept and each.problems and each.workflow_id.startswith("wf_"):
            print_hint(terminal, f"    pointsman show {each.workflow_id}")
    if report.confusion:
        terminal.print()
        terminal.print(
            Text("expected ↓  used →", style="italic")
        )  # not the title of the table, which would be wrapped to the width of the table
        terminal.print(_confusion_table(report))
    used, right = report.usage, sum(not each.problems for each in report.results)
    terminal.print()
    routing = "" if report.routing_accuracy is None else f", routing {report.routing_accuracy:.0%}"
    accuracy = f"accuracy {report.accuracy:.0%} (threshold {report.threshold:.0%}){routing}"
    style = "green" if report.passed else "red"
    terminal.print(Text(f"{right} of {len(report.results)} right: {accuracy}", style=style))
    cost = f"{used.calls} model calls, {used.tokens} tokens, {format_dollars(used.cost)}"
    terminal.print(Text(f"{format_seconds(report.elapsed)}, {cost}", style="dim"))
    if not report.passed:
        print_error(f"{report.name}: the accuracy {report.accuracy:.0%} is below the threshold {report.threshold:.0%}")


def _confusion_table(report: EvaluationReport) -> Table:
    names = sorted({name for cell in report.confusion for name in cell} - {NO_AGENT})
    unassigned = any(NO_AGENT in cell for cell in report.confusion)
    table = Table(box=None, padding=(0, 2, 0, 0))
    columns = [*names, *([NO_AGENT] if unassigned else [])]
    for column in ("", *columns):
        table.add_column(column, justify="left" if not column else "right")
    for row in columns:
        counts = [report.confusion.get((row, column), 0) for column in columns]
        cells = [
            Text(str(count) if count else "·", style="" if row == column or not count else "red")
            for count, column in zip(counts, columns, strict=True)
        ]
        if any(counts):
            table.add_row(Text(row), *cells)
    return table
