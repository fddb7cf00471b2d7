"""The command `eval`: a suite against what runs, or against a team that it starts for it."""

from __future__ import annotations

import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

from rich.table import Table
from rich.text import Text

from pointsman import app
from pointsman.cli import stage
from pointsman.cli.output import Code, complain, console, emit, one_line
from pointsman.cli.session import session, settings_for
from pointsman.core.words import dollars, seconds
from pointsman.errors import ConfigurationError
from pointsman.evaluation import NOBODY, Report, Suite, evaluate, load_suite

__all__ = ["run"]


def run(
    path: Path, *, embedded: bool, target: str | None, parallel: int, threshold: float | None, junit: Path | None,
    url: str | None, namespace: str | None, json: bool,
) -> Code:  # fmt: skip
    suite = load_suite(path)
    changed = {"threshold": threshold, "target": target}
    suite = suite.model_copy(update={name: value for name, value in changed.items() if value is not None})
    report = app.run(_evaluated(suite, embedded=embedded, parallel=parallel, url=url, namespace=namespace))
    if junit is not None:
        junit.write_bytes(report.as_junit())
    if json:
        emit(report.as_json())
    else:
        _tell(report)
    return Code.OK if report.passed else Code.FAILED


async def _evaluated(suite: Suite, *, embedded: bool, parallel: int, url: str | None, namespace: str | None) -> Report:
    async with AsyncExitStack() as stack:
        if embedded:
            if suite.target is None:
                raise ConfigurationError(
                    "--embedded does not know what to start; give --target, or a `target` in the suite: module "
                    "or file.py"
                )
            home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pointsman-eval-")))
            settings = settings_for(None, namespace)
            client = await stack.enter_async_context(
                stage.embedded(suite.target, settings, home, team=bool(suite.team))
            )
        else:
            client = await stack.enter_async_context(session(url, namespace, create=True))
        return await evaluate(suite, client, parallel=parallel)


def _tell(report: Report) -> None:
    terminal = console()
    for each in report.scored:
        mark, style = ("✗", "red") if each.problems else ("✓", "green")
        line = Text(f"{mark} {one_line(each.name, limit=100)}", style=style)
        terminal.print(line.append(f"  {seconds(each.elapsed)}", style="dim"))
        for problem in each.problems:
            terminal.print(Text(f"    {one_line(problem, limit=400)}"))
        if each.problems and each.workflow_id.startswith("wf_"):
            terminal.print(Text(f"    pointsman show {each.workflow_id}", style="dim"))
    if report.confusion:
        terminal.print()
        terminal.print(_confusion(report))
    used, right = report.usage, sum(not each.problems for each in report.scored)
    terminal.print()
    routing = "" if report.routing is None else f", routing {report.routing:.0%}"
    terminal.print(
        Text(f"{right} of {len(report.scored)} right: accuracy {report.accuracy:.0%} (at least "
             f"{report.threshold:.0%}){routing}", style="green" if report.passed else "red")
    )  # fmt: skip
    cost = f"{used.calls} model calls, {used.tokens} tokens, {dollars(used.cost)}"
    terminal.print(Text(f"{seconds(report.elapsed)}, {cost}", style="dim"))
    if not report.passed:
        complain(f"{report.name} is below the threshold of {report.threshold:.0%}")


def _confusion(report: Report) -> Table:
    names = sorted({name for cell in report.confusion for name in cell} - {NOBODY})
    nobody = any(NOBODY in cell for cell in report.confusion)
    table = Table(title="expected ↓  used →", title_justify="left", box=None, padding=(0, 2, 0, 0))
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
