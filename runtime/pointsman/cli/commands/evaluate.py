"""The command `eval`: a suite against what runs, or against a team that it starts for it."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

from rich.table import Table
from rich.text import Text

from pointsman import app
from pointsman.cli.render.outcome import text_of
from pointsman.cli.render.output import Code, complain, console, emit, hint, one_line, prose, say
from pointsman.cli.support import local_system
from pointsman.cli.support.session import session, settings_for
from pointsman.client.client import Client
from pointsman.core.views.formatting import format_dollars, format_seconds
from pointsman.engine.process.discovery import load_agents
from pointsman.errors import ConfigurationError, NotFound
from pointsman.evaluation.runner import NOBODY, Report, Suite, evaluate, load_suite

__all__ = ["run"]

_PATIENCE = 3.0  # seconds until it is told who is missing: who runs is found at once
_LONGEST = 30.0  # seconds until nobody is waited for any longer; who was started a moment ago needs a few
_LOOK = 0.1  # seconds between two looks at who is there


def run(
    path: Path, *, embedded: bool, target: str | None, parallel: int, threshold: float | None, junit: Path | None,
    url: str | None, namespace: str | None, json: bool,
) -> Code:  # fmt: skip
    suite = load_suite(path)
    changed = {"threshold": threshold, "target": target}
    suite = suite.model_copy(update={name: value for name, value in changed.items() if value is not None})
    if junit is not None:
        _see_that_writable(junit)
    report = app.run(_evaluated(suite, embedded=embedded, parallel=parallel, url=url, namespace=namespace))
    if junit is not None:
        junit.write_bytes(report.as_junit())
        complain(f"{junit} has the results as JUnit's XML; cases: {len(report.scored)}")
    if json:
        emit(report.as_json())
    else:
        _tell(report, kept=not embedded)
    return Code.OK if report.passed else Code.FAILED


async def _evaluated(suite: Suite, *, embedded: bool, parallel: int, url: str | None, namespace: str | None) -> Report:
    async with AsyncExitStack() as stack:
        if embedded:
            if suite.target is None:
                raise ConfigurationError(
                    "--embedded does not know what to start; give --target, or a `target` in the suite: module "
                    "or file.py"
                )
            _see_that_defined(suite, suite.target)
            home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pointsman-eval-")))
            settings = settings_for(None, namespace)
            client = await stack.enter_async_context(
                local_system.embedded(suite.target, settings, home, team=bool(suite.team))
            )
        else:
            client = await stack.enter_async_context(session(url, namespace, create=True))
            await _attended(client, suite)
        return await evaluate(suite, client, parallel=parallel)


def _see_that_writable(junit: Path) -> None:
    """Before anything is paid for. Raises `ConfigurationError`."""
    try:
        junit.open("ab").close()
    except OSError as error:
        raise ConfigurationError(
            f"{junit} cannot be written: {error.strerror}; give --junit a file in a folder that is there"
        ) from None


def _see_that_defined(suite: Suite, target: str) -> None:
    """Before anything is started. Raises `ConfigurationError` when `target` defines others than the suite asks."""
    if suite.team:
        what, there = "team", {each.name for each in app.load_teams(target)}
    else:
        what, there = "agent", {each.card.name for each in load_agents([target])}
    if (wanted := suite.team or suite.agent) not in there:
        raise ConfigurationError(f"{target} defines no {what} {wanted!r}; it has {', '.join(sorted(there))}")


async def _attended(client: Client, suite: Suite) -> None:
    """Wait until somebody is there to ask: what is sent to nobody stays in the stream and is worked on some day."""
    name = suite.team or suite.agent
    who = f"a supervisor of {name!r}" if suite.team else f"the agent {name!r}"
    began, told = asyncio.get_running_loop().time(), False
    while name not in {card.name for card in await client.bus.registry.cards() if card.team or not suite.team}:
        waited = asyncio.get_running_loop().time() - began
        if waited >= _PATIENCE and not told:
            told = True
            doctor = f"pointsman doctor {name}" if suite.team else "pointsman agents"
            complain(f"nobody is there to take the requests: is {who} running? `{doctor}` looks for what is missing; "
                     "or use --embedded")  # fmt: skip
        if waited >= _LONGEST:
            command = f"pointsman {'supervisor' if suite.team else 'worker'} {suite.target or 'module:name'}"
            raise NotFound(
                f"{who} did not come up within {_LONGEST:.0f} s and nothing was sent; start it, as with `{command}`, "
                "or use --embedded"
            )
        await asyncio.sleep(_LOOK)


def _tell(report: Report, *, kept: bool) -> None:
    """`kept`: whether the workflows can still be looked at."""
    terminal = console()
    for each in report.scored:
        mark, style = ("✗", "red") if each.problems else ("✓", "green")
        line = Text(f"{mark} {one_line(each.name, limit=100)}", style=style)
        terminal.print(line.append(f"  {format_seconds(each.elapsed)}", style="dim"))
        for problem in each.problems:
            prose(terminal, f"    {one_line(problem, limit=400)}")
        if each.problems and each.answer is not None:
            say(terminal, Text(f"    answer: {one_line(text_of(each.answer))}"))
        if kept and each.problems and each.workflow_id.startswith("wf_"):
            hint(terminal, f"    pointsman show {each.workflow_id}")
    if report.confusion:
        terminal.print()
        terminal.print(Text("expected ↓  used →", style="italic"))  # a table's own title is as narrow as the table
        terminal.print(_confusion(report))
    used, right = report.usage, sum(not each.problems for each in report.scored)
    terminal.print()
    routing = "" if report.routing is None else f", routing {report.routing:.0%}"
    terminal.print(
        Text(f"{right} of {len(report.scored)} right: accuracy {report.accuracy:.0%} (at least "
             f"{report.threshold:.0%}){routing}", style="green" if report.passed else "red")
    )  # fmt: skip
    cost = f"{used.calls} model calls, {used.tokens} tokens, {format_dollars(used.cost)}"
    terminal.print(Text(f"{format_seconds(report.elapsed)}, {cost}", style="dim"))
    if not report.passed:
        complain(f"{report.name} is below the threshold of {report.threshold:.0%}")


def _confusion(report: Report) -> Table:
    names = sorted({name for cell in report.confusion for name in cell} - {NOBODY})
    nobody = any(NOBODY in cell for cell in report.confusion)
    table = Table(box=None, padding=(0, 2, 0, 0))
    columns = [*names, *([NOBODY] if nobody else [])]
    for column in ("", *columns):
        table.add_column(column, justify="left" if not column else "right")
    for row in columns:
        counts = [report.confusion.get((row, column), 0) for column in columns]
        cells = [Text(str(count) if count else "·", style="" if row == column or not count else "red")
                 for count, column in zip(counts, columns, strict=True)]  # fmt: skip
        if any(counts):
            table.add_row(Text(row), *cells)
    return table
