"""The command trace, which draws the tree of tasks, attempts and calls of a workflow.

With `--follow`, the command draws the tree again and again while the workflow runs.
"""

from __future__ import annotations

import asyncio
import json as json_module
from contextlib import suppress
from datetime import UTC, datetime
from time import monotonic
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

from pointsman.cli.arguments import Json, WorkflowId
from pointsman.cli.render.live_trace import LiveTrace
from pointsman.cli.render.output import console, print_error, print_json, print_table, write_json
from pointsman.cli.render.tree import render_tree
from pointsman.cli.render.viewport import fit_to_lines
from pointsman.cli.render.wait_notices import notices, report_outages
from pointsman.cli.support.ids import resolve_workflow_id
from pointsman.cli.support.session import Session, broker_command
from pointsman.client.client import Client, Workflow
from pointsman.core.views.trace_status import at_time
from pointsman.errors import BusUnavailableError
from pointsman.telemetry.otlp import to_otlp

__all__ = ["trace"]

_FRAME_INTERVAL_S = 0.1  # seconds between two frames; looks smooth and takes a few per cent of a core
# The pause after a drawing is at least this many times as long as the drawing, which takes longer with more tasks.
_REDRAW_PAUSE_FACTOR = 9
# Number of lines of the terminal for the header, the command above the tree and a failure below the tree.
_RESERVED_LINES = 4


@broker_command
async def trace(
    session: Session,
    workflow: WorkflowId,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Draw the tree while the workflow runs, until it has ended.")
    ] = False,
    otlp: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Write the spans as OTLP/JSON, for a collector; - for standard output.",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Draw the tasks and calls of a workflow on a time axis.

    The tree is built from the log of the workflow and shows durations, tokens and costs.
    """
    async with session() as client:
        id = await resolve_workflow_id(client, workflow)
        terminal = console()
        if follow:
            async with notices(report_outages(client.bus)):
                await _draw_live_trace(client, await client.workflow(id), terminal)
        now = datetime.now(UTC)
        root = at_time(await client.trace(id), now, await client.operations.live_names())
        prefix = client.subjects.namespace
    if otlp is not None:
        request = to_otlp(root, namespace=prefix, workflow_id=id, now=now)
        write_json(otlp, json_module.dumps(request) + "\n")
        if otlp != "-":
            (spans,) = (scope["spans"] for scope in request["resourceSpans"][0]["scopeSpans"])
            print_error(f"wrote the trace of {id} to {otlp} as OTLP/JSON; spans: {len(spans)}")
    if json:
        print_json(root)
    elif otlp != "-":
        print_table(terminal, render_tree(root, now, terminal.width))


async def _draw_live_trace(client: Client, workflow: Workflow, terminal: Console) -> None:
    """Draw the tree of a workflow until the workflow has ended. Without a terminal, only wait for the end."""
    live_trace = LiveTrace(client, workflow)

    async def redraw(live: Live) -> None:
        while True:
            began = monotonic()
            if (root := live_trace.trace()) is not None:
                now = datetime.now(UTC)
                with suppress(BusUnavailableError):  # no frame now; the next frame follows when the broker is back
                    shown = fit_to_lines(
                        at_time(root, now, await client.operations.live_names()), terminal.height - _RESERVED_LINES
                    )
                    live.update(render_tree(shown, now, terminal.width), refresh=True)
            await asyncio.sleep(max(_FRAME_INTERVAL_S, _REDRAW_PAUSE_FACTOR * (monotonic() - began)))

    with Live(console=terminal, auto_refresh=False, transient=True, vertical_overflow="ellipsis") as live:
        drawing = asyncio.ensure_future(redraw(live)) if terminal.is_terminal else None
        try:
            await live_trace.follow()
        finally:
            if drawing is not None:
                drawing.cancel()
