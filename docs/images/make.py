"""The pictures of docs/dashboard.md: a made-up back office at work on the in-memory bus, seen through a real Chromium.

python docs/images/make.py            write the pictures again
python docs/images/make.py --serve    keep it running, to look at it in a browser of your own
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from pointsman import Context, agent, telemetry
from pointsman.authoring.agent import Agent
from pointsman.bus.memory.bus import MemoryBroker
from pointsman.client.client import Client
from pointsman.clock import SystemClock
from pointsman.engine.supervisor.engine import SupervisorEngine
from pointsman.engine.worker.engine import Worker
from pointsman.errors import TaskError
from pointsman.settings import Settings
from pointsman.web.server import serve
from pointsman.web.users import Users
from pointsman_schemas.card import Role
from pointsman_schemas.events import Usage
from pointsman_schemas.plan import Plan
from pointsman_schemas.role_io import PlannerInput, Synthesis, SynthesizerInput
from pointsman_schemas.team import RetryPolicy, Team

HERE = Path(__file__).parent
MODEL = "gpt-5-mini"

TASKS = [
    ("orders", "orders", "Find the orders that were charged twice", []),
    ("payments", "payments", "List the payments of the last 24 hours", []),
    ("deploys", "deploys", "List what was released since yesterday", []),
    ("logs", "logs", "Look for errors of the payment service", ["deploys"]),
    ("tickets", "tickets", "Count the customers who have complained", ["orders"]),
    ("match", "analyst", "Match double charges with releases", ["orders", "payments", "logs"]),
    ("refunds", "payments", "Prepare the refunds", ["match"]),
    ("letter", "writer", "Draft the letter to the customers", ["match", "tickets"]),
]
REQUESTS = [
    "Some customers were charged twice since yesterday. Find out why, and prepare what we owe them.",
    "Which invoices of ACME are still open?",
    "Customers in Norway cannot log in since 09:40",
    "Compare this week's refunds with last week's",
    "Is the API slower than usual for anyone?",
    "Draft an answer to ticket 4821",
]


@agent(name="planner", description="Writes the plan", role=Role.PLAN)
async def planner(asked: PlannerInput, context: Context) -> Plan:
    await _ask(context, 0.35, 1_840, 310)
    chosen = TASKS if str(asked.request).startswith("Some customers") else TASKS[:3]
    tasks = [{"id": i, "agent": who, "intent": what, "depends_on": on} for i, who, what, on in chosen]
    return Plan.model_validate({"goal": "find the cause, then make it good", "tasks": tasks})


@agent(name="synthesizer", description="Writes the answer", role=Role.SYNTHESIZE)
async def synthesizer(asked: SynthesizerInput, context: Context) -> Synthesis:
    await _ask(context, 0.4, 2_960, 240)
    return Synthesis(
        answer="37 customers were charged twice between 16:02 and 21:30 yesterday. The cause is release 4.18.2 of the "
        "payment service: it sends a charge again when the bank is slow to answer, and without the key that lets the "
        "bank recognise it.\n\nRefunds of 4,211.50 EUR are prepared and wait for your word. A letter to the 37 "
        "customers is drafted; 12 of them have written to us already."
    )


def worker(name: str, description: str, pause: float, tool: str, *, fails: bool = False) -> Agent:
    """An agent that uses a tool and a model, and takes about `pause` seconds."""

    @agent(name=name, description=description, skills=[name])
    async def work(request: str, context: Context) -> str:
        async with context.tool(tool):
            await asyncio.sleep(pause * 0.5)
        if fails and context.attempt == 1:
            raise TaskError("the log store did not answer within 200 ms", retryable=True)
        if "Norway" in request and name == "deploys":
            raise TaskError("the list of releases is not there for this account")
        await _ask(context, pause * 0.5, 920, 120)
        return f"{name}: done"

    return work


AGENTS = [
    planner,
    synthesizer,
    worker("orders", "Finds and compares orders", 0.5, "find_orders"),
    worker("payments", "Payments, refunds and double charges", 0.7, "list_payments"),
    worker("deploys", "What was released, when, by whom", 0.25, "list_releases"),
    worker("logs", "Searches the logs of any service", 0.4, "search_logs", fails=True),
    worker("tickets", "Reads and counts customers' tickets", 0.3, "search_tickets"),
    worker("analyst", "Finds what belongs together in data", 0.6, "run_query"),
    worker("writer", "Writes letters in the house's tone", 0.5, "load_style_guide"),
]


async def _ask(context: Context, pause: float, read: int, written: int) -> None:
    async with context.chat("openai", MODEL) as call:
        await asyncio.sleep(pause)
        call.record_usage(Usage(calls=1, input_tokens=read, output_tokens=written, cost=read * 2.5e-7 + written * 2e-6))


@asynccontextmanager
async def office(port: int = 0) -> AsyncIterator[tuple[str, Client]]:
    """The back office with its dashboard, which has seen a few requests: the address, and a client."""
    broker, settings, stop = MemoryBroker(), Settings(), asyncio.Event()
    teams = [
        Team(name="back-office", retry=RetryPolicy(backoff=0.15)),
        Team(name="support", retry=RetryPolicy(attempts=2, backoff=0.1)),
    ]
    parts = [SupervisorEngine(broker.connect(), team, settings, SystemClock()).run(stop) for team in teams]
    parts.append(Worker(broker.connect(), AGENTS, settings).run(stop))
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    parts.append(
        serve(
            Client(broker.connect()),
            Settings(dashboard_port=port),
            users=Users(()),
            hosts=(),
            stop=stop,
            ready=address.set_result,
        )
    )
    running = [asyncio.create_task(part) for part in parts]
    client = Client(broker.connect())
    try:
        while len(await client.operations.agents()) < len(AGENTS):  # noqa: ASYNC110  the registry has no event for it
            await asyncio.sleep(0.05)
        yield await address, client
    finally:
        stop.set()
        await asyncio.gather(*running)


async def pictures(folder: Path, chromium: str) -> None:
    from playwright.async_api import ViewportSize, async_playwright

    async with office() as (address, client), async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        earlier = []
        for text in REQUESTS[:0:-1]:
            earlier.append(await client.submit("support", text))
            await asyncio.sleep(0.2)
        await asyncio.gather(*(workflow.outcome(timeout=30) for workflow in earlier))
        workflow = await client.submit("back-office", REQUESTS[0])
        wide: ViewportSize = {"width": 1280, "height": 800}
        page = await browser.new_page(viewport=wide, color_scheme="light")
        await page.goto(f"{address}/workflows/{workflow.id}")
        await page.get_by_text("is handed match").wait_for()
        await workflow.outcome(timeout=30)
        await page.get_by_role("heading", name="Answer").wait_for()
        await page.screenshot(path=folder / "dashboard-workflow.png", full_page=False)
        dark = await browser.new_page(viewport=wide, color_scheme="dark")
        await dark.goto(f"{address}/workflows/{workflow.id}")
        await dark.get_by_role("heading", name="Answer").wait_for()
        await dark.locator(".timeline").first.scroll_into_view_if_needed()
        await dark.evaluate(
            "document.querySelector('.timeline').closest('section').scrollIntoView({block: 'start'}); scrollBy(0, -64)"
        )
        await dark.screenshot(path=folder / "dashboard-timeline.png")
        await client.submit("back-office", REQUESTS[0])
        await page.goto(address)
        await page.get_by_role("link", name="Norway").wait_for()
        await page.locator("li.row:has(.status.running) .tasks .number:not(:empty)").wait_for()
        await page.screenshot(path=folder / "dashboard-list.png", clip={"x": 0, "y": 0, "width": 1280, "height": 520})
        phone = await browser.new_page(viewport={"width": 390, "height": 844}, color_scheme="dark")
        await phone.goto(f"{address}/workflows/{workflow.id}")
        await phone.get_by_role("heading", name="Answer").wait_for()
        await phone.screenshot(path=folder / "dashboard-phone.png")
        await browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--to", type=Path, default=HERE)
    parser.add_argument("--chromium", default=shutil.which("chromium") or shutil.which("google-chrome"))
    chosen = parser.parse_args()
    telemetry.setup("pictures", settings=Settings(log_level="error"))
    if chosen.serve:
        asyncio.run(_serve())
        return
    if chosen.chromium is None:
        sys.exit("there is no chromium here: apt-get install chromium")
    asyncio.run(pictures(chosen.to, chosen.chromium))


async def _serve() -> None:
    async with office(8400) as (address, client):
        for text in REQUESTS[::-1]:
            await client.submit("back-office" if text == REQUESTS[0] else "support", text)
        sys.stdout.write(f"{address}, until Ctrl-C\n")
        await asyncio.Event().wait()


if __name__ == "__main__":
    main()
