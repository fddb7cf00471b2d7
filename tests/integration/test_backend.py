"""Two independent systems receive the trace of a team of processes. One process is killed, and one fails at first.

The systems are the collector rotel, a dependency of the tests, and the backend Arize Phoenix, which is read through its
query interface. Phoenix needs 650 MB of packages. `make backend` installs them and runs the test of Phoenix, which is
otherwise skipped.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import pytest
from support.broker import remove_streams
from support.otlp import OtlpCollector, ReceivedSpan
from support.phoenix import Phoenix, SeenSpan
from support.processes import System

from pointsman.bus.embedded_server import EmbeddedBroker
from pointsman.settings import Settings
from pointsman_agents.customer_service import SAMPLE_REQUEST

Span: TypeAlias = ReceivedSpan | SeenSpan
EXECUTABLE = os.environ.get("PHOENIX_EXECUTABLE") or shutil.which("phoenix")
TEAM = "customer-service"
SHAKY = """
from pointsman import Agent
from pointsman.errors import TaskError
import pointsman_agents.customer_service.account as shipped


class Shaky(Agent):
    card = shipped.account.card

    async def run(self, handoff, context):
        if context.attempt == 1:
            raise TaskError("the directory is away", retryable=True)
        return await shipped.account.run(handoff, context)


account = Shaky()
"""
TREE = {
    ("invoke_workflow customer-service", "publish request"),
    ("plan planner", "invoke_workflow customer-service"),
    ("process planner", "plan planner"),
    ("chat offline", "process planner"),
    ("invoke_agent technical", "invoke_workflow customer-service"),
    ("process technical", "invoke_agent technical"),
    ("chat offline", "process technical"),
    ("execute_tool rate_limits", "process technical"),
    ("execute_tool service_status", "process technical"),
    ("invoke_agent billing", "invoke_workflow customer-service"),
    ("process billing", "invoke_agent billing"),
    ("chat offline", "process billing"),
    ("execute_tool find_charges", "process billing"),
    ("execute_tool request_refund", "process billing"),
    ("invoke_agent account", "invoke_workflow customer-service"),
    ("process account", "invoke_agent account"),
    ("chat offline", "process account"),
    ("execute_tool account_state", "process account"),
    ("execute_tool send_reset_link", "process account"),
    ("synthesize synthesizer", "invoke_workflow customer-service"),
    ("process synthesizer", "synthesize synthesizer"),
    ("chat offline", "process synthesizer"),
}


@pytest.mark.timeout(300)
async def test_a_collector_gets_the_whole_tree_after_a_crash_and_a_retry(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    async with OtlpCollector() as collector:
        await _crash_and_retry(collector, broker, tmp_path)


@pytest.mark.skipif(
    EXECUTABLE is None, reason="Arize Phoenix is not installed; `make backend` installs it and runs this test"
)
@pytest.mark.timeout(300)
async def test_real_backend_has_the_whole_tree_after_a_crash_and_a_retry(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    async with Phoenix(tmp_path / "phoenix", EXECUTABLE or "") as backend:
        await _crash_and_retry(backend, broker, tmp_path)


async def _crash_and_retry(backend: OtlpCollector | Phoenix, broker: EmbeddedBroker, folder: Path) -> None:
    settings = Settings(url=broker.url, namespace=f"t{secrets.token_hex(4)}", ack_wait=2)
    async with System(folder / "system", settings, **backend.environment) as system:
        # Crash before the tools run. Tools are not repeated, and a killed process may not have exported their spans.
        system.environment["POINTSMAN_FAULT"] = "worker.received:1"
        dying = await system.worker("pointsman_agents.customer_service.technical")
        del system.environment["POINTSMAN_FAULT"]
        await asyncio.gather(
            system.supervisor("pointsman_agents.customer_service"),
            *(system.worker(f"pointsman_agents.{role}") for role in ("planner", "synthesizer")),
            system.worker("pointsman_agents.customer_service.billing"),
            system.worker(system.write("shaky.py", SHAKY)),
        )
        asking = asyncio.ensure_future(system.command("submit", TEAM, SAMPLE_REQUEST, "--json", seconds=90))

        assert await asyncio.wait_for(dying.ended(), 60) == -9
        await system.worker("pointsman_agents.customer_service.technical")
        asked = await asking
        assert asked.code == 0, asked.errors
        spans: Sequence[Span] = await backend.trace(asked.documents[-1]["trace_id"], until=_whole)
    await remove_streams(settings)

    assert len({span.span_id for span in spans}) == len(spans)
    assert [span.name for span in spans if span.parent_id is None] == [f"publish {settings.namespace}.request.{TEAM}"]
    assert _tree(spans) == TREE
    (task,) = [span for span in spans if span.name == "invoke_agent account"]
    assert task.events == ("pointsman.attempt_failed", "pointsman.retry_scheduled")
    assert sorted(span.status for span in _attempts(spans, "account")) == ["error", "unset"]
    (crashed,) = _attempts(spans, "technical")
    assert "pointsman.handoff_redelivered" in crashed.events
    assert task.attributes["gen_ai.provider.name"] == "offline"


def _attempts(spans: Sequence[Span], agent: str) -> list[Span]:
    return [span for span in spans if span.name.endswith(f".handoff.{agent}")]


def _whole(spans: Sequence[Span]) -> bool:
    known = {span.span_id for span in spans}
    orphans = [span for span in spans if span.parent_id is not None and span.parent_id not in known]
    return not orphans and _tree(spans) >= TREE


def _tree(spans: Sequence[Span]) -> set[tuple[str, str]]:
    """Yield every span with its parent, without spans of inputs that were batched or redelivered by chance."""
    names = {span.span_id: _short(span.name) for span in spans}
    return {
        (_short(span.name), names.get(span.parent_id, "?"))
        for span in spans
        if span.parent_id is not None and not re.search(r"\.(control|result|timer|request)\.", span.name)
    }


def _short(name: str) -> str:
    if name.startswith("publish"):
        return "publish request"
    operation, _, rest = name.partition(" ")
    return f"{operation} {rest.rpartition('.')[2]}" if operation == "process" else name
