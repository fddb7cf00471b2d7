"""Measure the dashboard with 10,000 workflows in the log and with a plan of 500 tasks.

Run `python -m benchmarks.dashboard`. The benchmark starts a broker on the same machine and needs chromium.
"""

from __future__ import annotations

import asyncio
import shutil
import statistics
import sys
from datetime import UTC, datetime, timedelta
from time import monotonic, process_time
from typing import Any

from pointsman.bus.embedded_server import EmbeddedBroker
from pointsman.bus.jetstream.bus import connect
from pointsman.client.client import Client
from pointsman.index.rows import Search
from pointsman.index.workflows import WorkflowIndex
from pointsman.ports.bus import Bus
from pointsman.settings import Settings
from pointsman.web.server import serve
from pointsman.web.users import Users
from pointsman_schemas.card import Role
from pointsman_schemas.envelope import Envelope, encode
from pointsman_schemas.events import Outcome, Result, Usage
from pointsman_schemas.log import (
    Commit,
    Entry,
    PlanAccepted,
    TaskAdded,
    TaskDispatched,
    TaskSucceeded,
    TraceOrigin,
    WorkflowEnded,
    WorkflowStarted,
)
from pointsman_schemas.plan import Plan, PlannedTask
from pointsman_schemas.strict_json import dump
from pointsman_schemas.subjects import Subjects
from pointsman_schemas.team import Limits, PlanAndExecute, RetryPolicy

WORKFLOWS = 10_000
TASKS = 500
AT_ONCE = 200  # publishes in flight
ROUNDS = 5

START = datetime.now(UTC) - timedelta(hours=2)
USED = Usage(calls=1, input_tokens=900, output_tokens=120, cost=0.0005)


def commits_of(name: str, team: str, begun: datetime, plan: tuple[PlannedTask, ...]) -> list[list[Entry]]:
    """Return the commits of a workflow with this plan: a start, the plan, the success of each task, and the end."""

    def task(each: str, agent: str, at: datetime) -> list[Entry]:
        result = Result(
            workflow_id=name, task_id=each, attempt=1, agent=agent, status="succeeded", output={"result": "x" * 200},
            usage=USED, started_at=at + timedelta(milliseconds=5), ended_at=at + timedelta(milliseconds=400),
        )  # fmt: skip
        return [
            TaskDispatched(
                at=at, task_id=each, attempt=1, agent=agent, deadline=at + timedelta(seconds=60), span_id="b" * 16
            ),
            TaskSucceeded(at=result.ended_at, task_id=each, attempt=1, event_id=f"e-{each}", result=result),
        ]

    end = begun + timedelta(seconds=3)
    return [
        [
            WorkflowStarted(
                at=begun, workflow_id=name, team=team, request_id=name, correlation_id=name, caller="bench",
                secret=name, input=f"Request {name}: some customers were charged twice since yesterday",
                strategy=PlanAndExecute(), limits=Limits(), retry=RetryPolicy(), deadline=begun + timedelta(seconds=60),
                trace=TraceOrigin(trace_id="a" * 32, span_id="b" * 16),
            ),
            TaskAdded(at=begun, task_id="plan-1", role=Role.PLAN, agent="planner", intent="Plan the request"),
        ],
        [*task("plan-1", "planner", begun), PlanAccepted(at=begun, revision=1, plan=Plan(goal="mend it", tasks=plan))],
        *(task(each.id, each.agent, begun + timedelta(milliseconds=500 + at)) for at, each in enumerate(plan)),
        [
            WorkflowEnded(
                at=end,
                outcome=Outcome(
                    workflow_id=name, team=team, status="completed", answer="mended", usage=USED, correlation_id=name,
                    trace_id="a" * 32, started_at=begun, ended_at=end, elapsed=3, sequential=6,
                ),
            )
        ],
    ]  # fmt: skip


async def store(bus: Bus, subjects: Subjects, team: str, name: str, commits: list[list[Entry]]) -> None:
    for number, entries in enumerate(commits, 1):
        envelope = Envelope(id=f"{name}-{number}", type=Commit.event_type, source="bench", time=START, subject=name)
        await bus.publish(
            subjects.log(team, name), dump(Commit(number=number, entries=tuple(entries))), encode(envelope)
        )


async def main() -> None:
    chromium = shutil.which("chromium") or sys.exit(
        "chromium was not found; install it, for example with apt-get install chromium"
    )
    async with EmbeddedBroker() as broker:
        settings = Settings(url=broker.url)
        bus = await connect(settings, name="bench", wait=10)
        await bus.set_up()
        client = Client(bus)
        small = tuple(PlannedTask(id=f"t{n}", agent=f"agent{n}", intent="do it") for n in range(3))
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(number: int) -> None:
            async with gate:
                name, team = f"wf_{number:024x}", f"team{number % 5}"
                await store(
                    bus,
                    client.subjects,
                    team,
                    name,
                    commits_of(name, team, START + timedelta(milliseconds=number * 500), small),
                )

        began = monotonic()
        await asyncio.gather(*(one(number) for number in range(WORKFLOWS)))
        large = tuple(
            PlannedTask(
                id=f"t{n}", agent=f"agent{n % 9}", intent="do it", depends_on=(f"t{n // 5}",) if n >= 25 else ()
            )
            for n in range(TASKS)
        )
        await store(
            bus, client.subjects, "team0", "wf_large", commits_of("wf_large", "team0", datetime.now(UTC), large)
        )
        print(
            f"log written               {monotonic() - began:8.1f} s  {WORKFLOWS:,} workflows, and one of {TASKS} tasks"
        )

        index = WorkflowIndex(bus, client.subjects, details=True)
        cpu, began = process_time(), monotonic()
        folding = asyncio.create_task(index.run())
        while index.sequence < (WORKFLOWS * 6):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        used = process_time() - cpu
        print(f"index folded              {monotonic() - began:8.1f} s  {used:.1f} s of CPU")
        for label, search in (
            ("page of the list", Search()),
            ("page, by team and state", Search(team="team3", statuses=("completed",))),
            ("page, by text", Search(text="0000002710")),
        ):
            print(f"{label:<25} {_median(lambda search=search: index.page(search)):8.1f} ms")
        folding.cancel()
        await _in_a_browser(client, chromium)
        await bus.close()


async def _in_a_browser(client: Client, chromium: str) -> None:
    from playwright.async_api import async_playwright

    stop: asyncio.Event = asyncio.Event()
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(
        serve(client, Settings(dashboard_port=0), users=Users(()), hosts=(), stop=stop, ready=address.set_result)
    )
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = await browser.new_page()
        await page.goto(await address)
        await page.get_by_text(f"1 to 100 of {WORKFLOWS + 1:,}").wait_for(timeout=60_000)
        taken = []
        for _ in range(ROUNDS):
            began = monotonic()
            await page.reload()
            await page.get_by_text(f"1 to 100 of {WORKFLOWS + 1:,}").wait_for()
            taken.append(monotonic() - began)
        print(f"list, reload to rows      {statistics.median(taken) * 1000:8.0f} ms")
        taken = []
        for _ in range(ROUNDS):
            began = monotonic()
            await page.goto(f"{await address}/workflows/wf_large")
            await page.locator(".node[data-task=t499].good").wait_for()
            await page.get_by_text("1,006 events").wait_for()
            taken.append(monotonic() - began)
        print(f"500 tasks, reload to all  {statistics.median(taken) * 1000:8.0f} ms")
        drawn = await page.evaluate(
            """async () => {
                const { layout } = await import('/static/graph.js');
                const ids = Array.from({ length: 500 }, (_, n) => `t${n}`);
                const needs = Object.fromEntries(ids.map((id, n) => [id, n < 25 ? [] : [`t${Math.floor(n / 5)}`]]));
                const began = performance.now();
                for (let round = 0; round < 10; round += 1) layout(ids, needs);
                return (performance.now() - began) / 10;
            }"""
        )
        print(f"500 tasks, layout alone   {drawn:8.1f} ms")
        await browser.close()
    stop.set()
    await serving


def _median(act: Any) -> float:
    taken = []
    for _ in range(ROUNDS):
        began = monotonic()
        act()
        taken.append(monotonic() - began)
    return statistics.median(taken) * 1000


if __name__ == "__main__":
    asyncio.run(main())
