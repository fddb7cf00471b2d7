"""The command `demo`: a whole team in processes of its own, for one request."""

from __future__ import annotations

import asyncio
import importlib
import shlex
import shutil
import time
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path

from rich.text import Text

from pointsman import app
from pointsman.bus.embedded_server import EmbeddedBroker
from pointsman.cli.render import outcome as render
from pointsman.cli.render.follow import follow
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


def demo(text: str | None, *, directory: Path | None, json: bool) -> Code:
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
                print_error(f"the logs of the broker and of each process are in {home}")
            elif directory is None:
                shutil.rmtree(home, ignore_errors=True)


async def _run_demo(text: str | None, settings: Settings, home: Path, *, json: bool) -> Code:
    terminal, began = console(), time.monotonic()
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(EmbeddedBroker(home / "broker"))
        children = await stack.enter_async_context(local_system.child_processes(home, broker, settings))
        starting = asyncio.ensure_future(local_system.start_children(children, SHIPPED_TEAM, SHIPPED_WORKERS))
        # Importing the shipped team takes as long here as in the children, so it happens beside their start.
        cast = await asyncio.to_thread(demo_topology)
        await starting
        request = text or str(importlib.import_module(SHIPPED_TEAM).SAMPLE_REQUEST)
        if not json:
            local_system.print_connection_settings(settings, broker, home, len(cast.agents))
        local_system.print_ready("broker", began, json=json)
        client = await stack.enter_async_context(session(broker.url, settings.namespace, create=True))
        await local_system.or_child_exit(
            children, local_system.wait_for_all(client, cast.agents, cast.team.name, json=json, began=began)
        )
        workflow = await _publish_request(client, cast.team.name, request)
        if not json:
            subject = client.subjects.request(cast.team.name)
            body = shlex.quote(compact_json({"input": request}).decode())
            said = f"\nAsking, as any NATS client can:\n  nats pub {subject} {escape_control(body)}\n"
            terminal.print(Text(said), soft_wrap=True)  # unbroken, so that it can be copied
        outcome = await local_system.or_child_exit(children, follow(workflow, json=json))
        root = await client.trace(workflow.id)
        if json:
            print_json({"outcome": outcome})
            print_json({"trace": root})
        else:
            terminal.print()
            print_prose(terminal, render.render_answer(outcome))
            terminal.print()
            terminal.print(render.render_outcome(outcome))
            terminal.print()
            terminal.print(render_tree(root, datetime.now(UTC), terminal.width))
            terminal.print("\nNext: `pointsman up` keeps all this running; `pointsman submit` asks it.", style="dim")
        return outcome_code(outcome)


async def _publish_request(client: Client, team: str, request: str) -> Workflow:
    """Publish the request as any NATS client would: bare JSON, no header. Its place in the stream is then its id."""
    sequence = await client.bus.publish(client.subjects.request(team), compact_json({"input": request}), {})
    return await client.workflow_from_sequence(sequence)
