"""The command `eval`: a suite against what runs, or against a team that it starts for it."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

from rich.table import Table
from rich.text import Text

from pointsman import app
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

__all__ = ["run"]

_WAIT_NOTICE_AFTER_S = 3.0  # seconds until it is told who is missing: who runs is found at once
_WAIT_TIMEOUT_S = 30.0  # seconds until nobody is waited for any longer; who was started a moment ago needs a few
_POLL_INTERVAL_S = 0.1  # seconds between two looks at who is there


def run(
    path: Path, *, embedded: bool, target: str | None, parallel: int, threshold: float | None, junit: Path | None,
    url: str | None, namespace: str | None, json: bool,
) -> Code:  # fmt: skip
    suite = load_suite(path)
    changed = {"threshold": threshold, "target": target}
    suite = suite.model_copy(update={name: value for name, value in changed.items() if value is not None})
    if junit is not None:
        _check_writable(junit)
    report = app.run(_evaluate(suite, embedded=embedded, parallel=parallel, url=url, namespace=namespace))
    if junit is not None:
        junit.write_bytes(report.as_junit())
        print_error(f"{junit} has the results as JUnit's XML; cases: {len(report.results)}")
    if json:
        print_json(report.as_json())
    else:
        _print_report(report, kept=not embedded)
    return Code.OK if report.passed else Code.FAILED


async def _evaluate(
    suite: Suite, *, embedded: bool, parallel: int, url: str | None, namespace: str | None
) -> EvaluationReport:
    async with AsyncExitStack() as stack:
        if embedded:
            if suite.target is None:
                raise ConfigurationError(
                    "--embedded does not know what to start; give --target, or a `target` in the suite: module "
                    "or file.py"
                )
            _check_defined(suite, suite.target)
            home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pointsman-eval-")))
            local_system.ignore_connection_settings()
            settings = settings_for(None, namespace)
            client = await stack.enter_async_context(
                local_system.local_system(suite.target, settings, home, team=bool(suite.team))
            )
        else:
            client = await stack.enter_async_context(session(url, namespace, create=True))
            await _wait_until_served(client, suite)
        return await evaluate(suite, client, parallel=parallel)


def _check_writable(junit: Path) -> None:
    """Before anything is paid for. Raises `ConfigurationError`."""
    try:
        junit.open("ab").close()
    except OSError as error:
        raise ConfigurationError(
            f"{junit} cannot be written: {error.strerror}; give --junit a file in a folder that is there"
        ) from None


def _check_defined(suite: Suite, target: str) -> None:
    """Before anything is started. Raises `ConfigurationError` when `target` defines others than the suite asks."""
    if suite.team:
        what, there = "team", {each.name for each in app.load_teams(target)}
    else:
        what, there = "agent", {each.card.name for each in load_agents([target])}
    if (wanted := suite.team or suite.agent) not in there:
        raise ConfigurationError(f"{target} defines no {what} {wanted!r}; it has {', '.join(sorted(there))}")


async def _wait_until_served(client: Client, suite: Suite) -> None:
    """Wait until somebody is there to ask: what is sent to nobody stays in the stream and is worked on some day."""
    name = suite.team or suite.agent
    who = f"a supervisor of {name!r}" if suite.team else f"the agent {name!r}"
    began, told = asyncio.get_running_loop().time(), False
    while name not in {card.name for card in await client.bus.registry.cards() if card.team or not suite.team}:
        waited = asyncio.get_running_loop().time() - began
        if waited >= _WAIT_NOTICE_AFTER_S and not told:
            told = True
            doctor = f"pointsman doctor {name}" if suite.team else "pointsman agents"
            print_error(f"nobody is there to take the requests: is {who} running? `{doctor}` looks for what is"
            " missing; "
                     "or use --embedded")  # fmt: skip
        if waited >= _WAIT_TIMEOUT_S:
            command = f"pointsman {'supervisor' if suite.team else 'worker'} {suite.target or 'module:name'}"
            raise NotFoundError(
                f"{who} did not come up within {_WAIT_TIMEOUT_S:.0f} s and nothing was sent; start it, as with"
                f" `{command}`, "
                "or use --embedded"
            )
        await asyncio.sleep(_POLL_INTERVAL_S)


def _print_report(report: EvaluationReport, *, kept: bool) -> None:
    """`kept`: whether the workflows can still be looked at."""
    terminal = console()
    for each in report.results:
        mark, style = ("✗", "red") if each.problems else ("✓", "green")
        line = Text(f"{mark} {one_line(each.name, limit=100)}", style=style)
        terminal.print(line.append(f"  {format_seconds(each.elapsed)}", style="dim"))
        for problem in each.problems:
            print_prose(terminal, f"    {one_line(problem, limit=400)}")
        if each.problems and each.answer is not None:
            print_event(terminal, Text(f"    answer: {one_line(value_text(each.answer))}"))
        if kept and each.problems and each.workflow_id.startswith("wf_"):
            print_hint(terminal, f"    pointsman show {each.workflow_id}")
    if report.confusion:
        terminal.print()
        terminal.print(Text("expected ↓  used →", style="italic"))  # a table's own title is as narrow as the table
        terminal.print(_confusion_table(report))
    used, right = report.usage, sum(not each.problems for each in report.results)
    terminal.print()
    routing = "" if report.routing_accuracy is None else f", routing {report.routing_accuracy:.0%}"
    terminal.print(
        Text(f"{right} of {len(report.results)} right: accuracy {report.accuracy:.0%} (at least "
             f"{report.threshold:.0%}){routing}", style="green" if report.passed else "red")
    )  # fmt: skip
    cost = f"{used.calls} model calls, {used.tokens} tokens, {format_dollars(used.cost)}"
    terminal.print(Text(f"{format_seconds(report.elapsed)}, {cost}", style="dim"))
    if not report.passed:
        print_error(f"{report.name} is below the threshold of {report.threshold:.0%}")


def _confusion_table(report: EvaluationReport) -> Table:
    names = sorted({name for cell in report.confusion for name in cell} - {NO_AGENT})
    nobody = any(NO_AGENT in cell for cell in report.confusion)
    table = Table(box=None, padding=(0, 2, 0, 0))
    columns = [*names, *([NO_AGENT] if nobody else [])]
    for column in ("", *columns):
        table.add_column(column, justify="left" if not column else "right")
    for row in columns:
        counts = [report.confusion.get((row, column), 0) for column in columns]
        cells = [Text(str(count) if count else "·", style="" if row == column or not count else "red")
                 for count, column in zip(counts, columns, strict=True)]  # fmt: skip
        if any(counts):
            table.add_row(Text(row), *cells)
    return table
