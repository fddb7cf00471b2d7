"""The command demo, which runs a broker and the demo team as child processes for one request."""

from __future__ import annotations

import asyncio
import importlib
import shlex
import shutil
import time
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from pointsman import app
from pointsman.bus.embedded_server import EmbeddedBroker
from pointsman.cli.arguments import Json
from pointsman.cli.render.follow import follow
from pointsman.cli.render.outcome import render_answer, render_outcome
from pointsman.cli.render.output import (
    Code,
    console,
    escape_control,
    outcome_code,
    print_error,
    print_json,
    print_prose,
)
from pointsman.cli.render.tree import render_tree
from pointsman.cli.support import local_system
from pointsman.cli.support.session import session, settings_for
from pointsman.cli.support.topology import SHIPPED_TEAM, SHIPPED_WORKERS, demo_topology
from pointsman.client.client import Client, Workflow
from pointsman.settings import Settings
from pointsman_schemas.strict_json import compact_json

__all__ = ["demo"]


def demo(
    text: Annotated[
        str | None,
        typer.Argument(
            metavar="[TEXT]", help="The request. Default: a sample request with three questions.", show_default=False
        ),
    ] = None,
    directory: Annotated[
        Path | None,
        typer.Option(
            "--dir",
            metavar="FOLDER",
            help="Folder for the data of the broker and the logs. Default: a temporary folder, deleted on success.",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
) -> Code:
    """Start a broker and a demo team, and answer one request.

    The broker, the supervisor and each agent run as child processes. Without an API key the agents answer offline.

    Returns:
        The exit code.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed.
    """
    local_system.ignore_connection_settings()
    settings = settings_for(None, None)
    home = local_system.working_directory(directory, "pointsman-demo-")
    with local_system.exclusive_lock(home):
        keep = True
        try:
            code = app.run(_run_demo(text, settings, home, json=json))
            keep = code is not Code.OK
            return code
        except KeyboardInterrupt:
            keep = False
            raise
        finally:
            if keep:
                print_error(f"the logs of the broker and of all processes are in {home}")
            elif directory is None:
                shutil.rmtree(home, ignore_errors=True)


async def _run_demo(text: str | None, settings: Settings, home: Path, *, json: bool) -> Code:
    terminal, began = console(), time.monotonic()
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(EmbeddedBroker(home / "broker"))
        children = await stack.enter_async_context(local_system.child_processes(home, broker, settings))
        starting = asyncio.ensure_future(local_system.start_children(children, SHIPPED_TEAM, SHIPPED_WORKERS))
        # The children import the demo team at the same time, so this import does not delay the start.
        topology = await asyncio.to_thread(demo_topology)
        await starting
        request = text or str(importlib.import_module(SHIPPED_TEAM).SAMPLE_REQUEST)
        if not json:
            local_system.print_connection_settings(settings, broker, home, len(topology.agents))
        local_system.print_ready("broker", began, json=json)
        client = await stack.enter_async_context(session(broker.url, settings.namespace, create=True))
        await local_system.or_child_exit(
            children, local_system.wait_for_all(client, topology.agents, topology.team.name, json=json, began=began)
        )
        workflow = await _publish_request(client, topology.team.name, request)
        if not json:
            subject = client.subjects.request(topology.team.name, client.user)
            body = shlex.quote(compact_json({"input": request}).decode())
            command = (
                f"\nSending the request. Any NATS client can do this:\n  nats pub {subject} {escape_control(body)}\n"
            )
            terminal.print(Text(command), soft_wrap=True)  # in one line, because a wrapped command cannot be copied
        outcome = await local_system.or_child_exit(children, follow(workflow, json=json))
        root = await client.trace(workflow.id)
        if json:
            print_json({"outcome": outcome})
            print_json({"trace": root})
        else:
            terminal.print()
            print_prose(terminal, render_answer(outcome))
            terminal.print()
            terminal.print(render_outcome(outcome))
            terminal.print()
            terminal.print(render_tree(root, datetime.now(UTC), terminal.width))
            terminal.print(
                "\nNext: `pointsman up` keeps such a system running; `pointsman submit` sends it requests.", style="dim"
            )
        return outcome_code(outcome)


async def _publish_request(client: Client, team: str, request: str) -> Workflow:
    """Publish a request as JSON without headers, as any NATS client can, and find its workflow by its sequence."""
    sequence = await client.bus.publish(
        client.subjects.request(team, client.user), compact_json({"input": request}), {}
    )
    return await client.workflow_from_sequence(sequence)
