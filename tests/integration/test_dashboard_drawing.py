"""The dashboard in a real Chromium draws plans, long lists, nested teams and long names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from random import Random

import pytest
from playwright.async_api import Browser, Page, expect
from support.browser import IN_BROWSER, page_of, served, wait_for_text
from support.dashboard import lasting_broker
from support.history import WORKFLOW, at, completed, dispatched, ended, planned, started, store, succeeded, tool

from pointsman.bus.memory.bus import MemoryBus
from pointsman.client.client import Client
from pointsman_schemas.card import AgentCard
from pointsman_schemas.envelope import Envelope, encode
from pointsman_schemas.events import ATTEMPT_STARTED, Progress, Usage
from pointsman_schemas.ids import child_id_for
from pointsman_schemas.log import Entry, PlanAccepted, RetryScheduled, TaskAbandoned
from pointsman_schemas.plan import Plan, PlannedTask
from pointsman_schemas.strict_json import dump
from pointsman_schemas.subjects import Subjects

pytestmark = IN_BROWSER

COUNTING = """where => {
  const touched = new Set();
  const named = (node) => (node.closest ? node : node.parentElement).closest("[data-task], li");
  const note = (all) => { for (const each of all) {
    for (const node of [each.target, ...each.addedNodes]) {
      const whose = named(node);
      if (whose) touched.add(whose.dataset.task || whose.querySelector("a").getAttribute("href"));
    }
  } };
  const observer = new MutationObserver(note);
  const all = { subtree: true, childList: true, attributes: true, characterData: true };
  observer.observe(document.querySelector(where), all);
  globalThis.counted = () => { note(observer.takeRecords()); return [...touched]; };
}"""


DRAWN = """const { planGraph } = await import("/static/graph.js");
  const graph = planGraph(() => {});
  document.querySelector("main").replaceChildren(graph.element);
  graph.draw(Object.keys(needs).map((id) => ({ task_id: id, agent: id, status: "waiting" })), needs);
  const lines = [...graph.element.querySelectorAll(".edges path")];"""
BEHIND = f"""async (needs) => {{ {DRAWN}
  const boxes = [...graph.element.querySelectorAll(".node")].map((node) => {{
    const [x, y] = node.getAttribute("transform").match(/[\\d.]+/g).map(Number);
    const box = node.querySelector(".box");
    return [node.dataset.task, x, y, x + Number(box.getAttribute("width")), y + Number(box.getAttribute("height"))];
  }});
  return lines.filter((line) => {{
    const {{ from, to }} = line.dataset;
    const others = boxes.filter(([task]) => task !== from && task !== to);
    for (let at = 0; at < line.getTotalLength(); at += 8) {{
      const {{ x, y }} = line.getPointAtLength(at);
      if (others.some(([, left, top, right, bottom]) => x > left && x < right && y > top && y < bottom)) return true;
    }}
    return false;
  }}).map((line) => `${{line.dataset.from}} to ${{line.dataset.to}}`);
}}"""
ON_EACH_OTHER = f"""async (needs) => {{ {DRAWN}
  const height = (line, x) => {{
    let [from, to] = [0, line.getTotalLength()];
    while (to - from > 0.5) {{
      const middle = (from + to) / 2;
      if (line.getPointAtLength(middle).x < x) from = middle; else to = middle;
    }}
    return line.getPointAtLength(from).y;
  }};
  const ends = (line) => [0, line.getTotalLength()].map((at) => line.getPointAtLength(at).x);
  const places = [...graph.element.querySelectorAll(".node")].map((node) => {{
    const [x] = node.getAttribute("transform").match(/[\\d.]+/g).map(Number);
    return x + Number(node.querySelector(".box").getAttribute("width")) / 2;
  }});
  return [...new Set(places)].flatMap((x) => {{
    const passing = lines.filter((line) => ends(line)[0] < x && x < ends(line)[1]);
    const heights = passing.map((line) => height(line, x).toFixed(3));
    return heights.filter((each, at) => heights.indexOf(each) < at);
  }});
}}"""
WRITTEN = f"""async (needs) => {{ {DRAWN}
  return [lines.length, lines.reduce((all, line) => all + line.getAttribute("d").length, 0)];
}}"""


async def test_plan_of_500_tasks_is_drawn_whole_in_a_stable_order(browser: Browser) -> None:
    names = [f"t{number}" for number in range(500)]
    plan = [
        PlannedTask(id=name, agent="fitter", intent="fit", depends_on=("t0",) if name != "t0" else ()) for name in names
    ]
    bus = MemoryBus()
    await store(bus, started(), *planned(*plan), dispatched("t0", "fitter", 1), succeeded("t0", "fitter", 1, 2))
    async with served(Client(bus)) as address, page_of(browser, address) as page:
        await page.goto(f"/workflows/{WORKFLOW}")
        await wait_for_text(page, "1 of 500 tasks done").to_be_visible()
        order = "nodes => nodes.map(node => node.dataset.task)"
        first = await page.locator(".node").evaluate_all(order)
        await page.locator(".node[data-task=t499]").evaluate("node => { node.kept = true; }")
        await page.evaluate(COUNTING, ".graph")
        await store(bus, dispatched("t499", "fitter", 2), number=2)
        await expect(page.locator(".lane[data-task=t499]")).to_have_count(1)
        touched = await page.evaluate("counted()")
        backwards: list[Entry] = []
        for name in reversed(names[1:]):
            if name != "t499":
                backwards.append(dispatched(name, "fitter", 3))
            backwards.append(succeeded(name, "fitter", 3, 4))
        await store(bus, *backwards, number=3)
        # Not `expect`, because it builds the accessibility text while it waits, which takes 20 s for 1,000 events.
        await page.get_by_text("500 of 500 tasks done").wait_for()
        then = await page.locator(".node").evaluate_all(order)
        kept = await page.locator(".node[data-task=t499].good").evaluate("node => node.kept")
        lanes = await page.locator(".lane.depth-0").count()
        lines = await page.locator(".event").count()

    assert first == then == ["plan-1", *names]
    assert touched == ["t499"], "one of 500 tasks started, but other tasks were also drawn again"
    assert kept, "the graph was built again"
    assert (lanes, lines) == (501, 1005)


async def test_page_draws_a_hundred_of_10_000_workflows_and_updates_changed_rows(browser: Browser) -> None:
    bus = MemoryBus()
    for number in range(10_000):
        name = f"wf_{number:024}"
        await store(bus, started(name), ended("completed", 3, workflow=name), workflow=name)
    asked: list[str] = []
    async with served(Client(bus)) as address, page_of(browser, address) as page:
        await page.goto("/")
        await expect(page.locator(".totals dd").first).to_have_text("10,000")
        await expect(page.locator("li.row")).to_have_count(100)
        await page.evaluate(COUNTING, ".workflows")
        page.on("request", lambda request: asked.append(request.url))
        await store(bus, started("wf_new"), workflow="wf_new")
        await expect(page.locator(".totals dd").first).to_have_text("10,001")
        await store(bus, ended("completed", 3, workflow="wf_new"), workflow="wf_new", number=2)
        await expect(page.locator("li.row").first).to_contain_text("Completed")
        rows = await page.locator("li.row").count()
        touched = await page.evaluate("counted()")

    assert (rows, asked) == (100, [])
    assert touched == ["/workflows/wf_new"]


async def test_workflow_links_to_the_workflows_of_its_teams(browser: Browser) -> None:
    bus = MemoryBus()
    first = dispatched("t1", "crew-a", 1).model_copy(update={"team": True})
    await store(bus, started(), *planned(PlannedTask(id="t1", agent="crew-a", intent="fit")), first)
    again = RetryScheduled(
        at=at(2), task_id="t1", attempt=2, agent="crew-b", not_before=at(2), deadline=at(63), team=True
    )
    async with served(Client(bus)) as address, page_of(browser, address) as page:
        await page.goto(f"/workflows/{WORKFLOW}")
        await wait_for_text(page, "crew-a · t1").to_be_visible()
        await store(bus, again, number=2)
        theirs = f"/workflows/{child_id_for('crew-b', WORKFLOW, 't1', 2)}"
        await expect(page.get_by_role("link", name="crew-b · t1, attempt 2")).to_have_attribute("href", theirs)
        await expect(page.locator(".below a")).to_have_count(2)
        await page.locator(".node[data-task=t1]").click()
        await expect(page.get_by_role("link", name="Open the team's workflow")).to_have_attribute("href", theirs)


def plans() -> Iterator[dict[str, list[str]]]:
    """Return plans with the dependencies of each task: a chain with short cuts, a parallel column, and random plans."""
    yield {f"t{n}": [f"t{at}" for at in range(n)] for n in range(6)}
    yield {"first": [], **{f"m{n}": ["first"] for n in range(40)}, "last": [f"m{n}" for n in range(40)] + ["first"]}
    draw = Random(1)
    for count in (8, 24, 70):
        yield {f"t{n}": [f"t{draw.randrange(n)}" for _ in range(min(n, draw.randrange(3)))] for n in range(count)}


async def test_no_edge_of_a_plan_passes_behind_an_unrelated_task(browser: Browser) -> None:
    async with served(Client(MemoryBus())) as address, page_of(browser, address) as page:
        await page.goto("/")
        for needs in plans():
            assert await page.evaluate(BEHIND, needs) == []


async def test_no_edges_of_a_plan_overlap(browser: Browser) -> None:
    many = {f"t{n}": [f"t{at}" for at in range(n)] for n in range(12)}
    async with served(Client(MemoryBus())) as address, page_of(browser, address) as page:
        await page.goto("/")
        for needs in (many, *plans()):
            assert await page.evaluate(ON_EACH_OTHER, needs) == []


async def test_edges_of_a_plan_of_500_tasks_stay_short(browser: Browser) -> None:
    needs = {f"t{n}": [f"t{at}" for at in {n - 1, n - 2, 0} if 0 <= at < n] for n in range(500)}
    async with served(Client(MemoryBus())) as address, page_of(browser, address) as page:
        await page.goto("/")
        (_, few), (lines, many) = [
            await page.evaluate(WRITTEN, some) for some in (dict(list(needs.items())[:50]), needs)
        ]

    assert lines == 499 + 498 + 497
    assert many < 12 * few, f"{few} for 50 tasks, but {many} for 500; expected linear growth"


async def test_task_is_pale_until_a_worker_has_begun_it(browser: Browser) -> None:
    bus = lasting_broker().connect()
    await store(
        bus, started(), *planned(PlannedTask(id="t1", agent="fitter", intent="fit")), dispatched("t1", "fitter", 1)
    )
    await bus.registry.announce(AgentCard(name="fitter", instance="i1", description="fits", version="1"))
    begun = tool(ATTEMPT_STARTED, 2, 2, kind="progress")
    headers = encode(Envelope(id="e", type=Progress.event_type, source="test", time=at(2), subject=WORKFLOW))
    async with served(Client(bus)) as address, page_of(browser, address) as page:
        await page.goto(f"/workflows/{WORKFLOW}")
        node, lane = page.locator(".node[data-task=t1]"), page.locator(".lane[data-task=t1]")
        await expect(node).to_have_attribute("aria-label", re.compile("handed over"))
        await expect(node.locator(".more")).to_have_text("t1 · Handed over")
        await expect(lane.locator(".span")).to_be_visible()
        await expect(lane.locator(".part")).to_have_count(0)
        await bus.publish(Subjects().event("crew", WORKFLOW, "fitter", "t1"), dump(begun), headers)
        await expect(node).to_have_attribute("aria-label", re.compile("running"))
        await expect(lane.locator(".part.running")).to_have_count(1)


async def test_bars_are_to_scale_and_every_page_shows_the_cost(browser: Browser) -> None:
    bus, paid = lasting_broker().connect(), Usage(calls=1, input_tokens=100, output_tokens=20, cost=0.25)
    done, end = succeeded("t1", "fitter", 1.5, 4), ended("completed", 6)
    await store(
        bus,
        started(),
        *planned(PlannedTask(id="t1", agent="fitter", intent="fit")),
        dispatched("t1", "fitter", 1),
        done.model_copy(update={"result": done.result.model_copy(update={"usage": paid})}),
        end.model_copy(update={"outcome": end.outcome.model_copy(update={"usage": paid})}),
    )
    await bus.registry.announce(AgentCard(name="fitter", instance="i1", description="fits", version="1"))
    drawn = "one => [one.style.left, one.style.width].map(parseFloat)"
    async with served(Client(bus)) as address, page_of(browser, address) as page:
        await page.goto(f"/workflows/{WORKFLOW}")
        lane = page.locator(".lane[data-task=t1]")
        whole, worked = [await lane.locator(name).evaluate(drawn) for name in (".span", ".part")]
        await expect(page.locator(".facts div", has_text="Cost").locator("dd")).to_have_text("$0.25")
        await page.goto("/")
        await expect(page.locator("li.row")).to_contain_text("$0.25")
        await expect(page.locator(".totals div", has_text="Cost").locator("dd")).to_have_text("$0.25")
        await page.goto("/agents")
        await expect(page.locator("tr", has_text="fitter").locator("td[data-name=Cost]")).to_have_text("$0.25")

    assert whole == pytest.approx([100 / 6, 300 / 6], abs=0.1)
    assert worked == pytest.approx([150 / 6, 250 / 6], abs=0.1)


async def test_dark_theme_follows_the_system_until_the_user_chooses(browser: Browser) -> None:
    async def theme(page: Page) -> tuple[str, str]:
        style = "getComputedStyle(document.{}).{}"
        scheme = await page.evaluate(style.format("documentElement", "colorScheme"))
        return scheme, await page.evaluate(style.format("body", "color"))

    async with served(Client(MemoryBus())) as address, page_of(browser, address, color_scheme="dark") as page:
        await page.goto("/")
        of_the_system = await theme(page)
        await page.locator("#theme").click()
        chosen = await theme(page)
        await page.reload()
        kept = await theme(page)

    assert (of_the_system[0], chosen[0]) == ("dark", "light")
    assert of_the_system[1] != chosen[1]
    assert kept == chosen


class Watched(MemoryBus):
    """A bus that can simulate an outage."""

    away = False

    @property
    def connected(self) -> bool:
        return not self.away and super().connected


async def test_agent_health_is_unknown_while_the_broker_or_the_dashboard_is_away(browser: Browser) -> None:
    bus = Watched(broker=lasting_broker())
    await store(bus, *completed())
    for name in ("fitter", "planner"):
        await bus.registry.announce(AgentCard(name=name, instance="i1", description="fits", version="1"))
    async with page_of(browser, "", complains="ERR_") as page:
        async with served(Client(bus)) as address:
            await page.goto(f"{address}/agents")
            fitter, total = page.locator("tr", has_text="fitter"), page.locator("tr.total")
            now = ["Health", "Instances", "Waiting", "In work"]
            expected = expect(fitter.locator("td[data-name='Health']"))
            await expected.to_have_text("Ready")
            bus.away = True
            await expected.to_have_text("Not known")
            away = [await fitter.locator(f"td[data-name='{name}']").inner_text() for name in now]
            tokens = await fitter.locator("td[data-name='Tokens']").inner_text()
            sums = [await total.locator(f"td[data-name='{name}']").inner_text() for name in now[1:]]
            await bus.registry.announce(AgentCard(name="fitter", instance="i1", description="fits", version="1"))
            bus.away = False
            await expected.to_have_text("Ready")
        await expected.to_have_text("Not known")

    assert away == ["Not known", *sums]
    assert sums == 3 * ["\u2013"]
    assert tokens == "120", "values from the log must stay visible during an outage"


async def test_long_names_and_short_runs_fit_a_phone(
    browser: Browser,
) -> None:
    bus, team = lasting_broker().connect(), "a-team-with-a-name-of-fifty-six-letters-and-without-a-gap"
    never = TaskAbandoned(at=at(0.43), task_id="t1", cause="cancelled", reason="cancelled")
    await store(
        bus,
        started(team=team, input="x" * 300),
        dispatched("plan-1", "p" * 58, 0.01),
        PlanAccepted(
            at=at(0.2),
            revision=1,
            plan=Plan(goal="mend it", tasks=(PlannedTask(id="t1", agent="fitter", intent="fit"),)),
        ),
        never,
        ended("cancelled", 0.43),
        team=team,
    )
    await bus.registry.announce(AgentCard(name="p" * 58, instance="i1", description="d" * 80, version="1"))
    async with (
        served(Client(bus)) as address,
        page_of(browser, address, viewport={"width": 390, "height": 844}) as page,
    ):
        await page.goto(f"/workflows/{WORKFLOW}")
        await expect(page.locator(".node[data-task=t1]")).to_contain_text("Abandoned")
        wide = await page.evaluate("document.documentElement.scrollWidth")
        scale = await page.locator(".axis span").all_inner_texts()
        heights = []
        for told in ("Live", "Reading the log 42 %"):
            await page.locator("#link-text").evaluate("(node, told) => { node.textContent = told; }", told)
            heights.append(await page.locator(".top").evaluate("node => node.offsetHeight"))
        await page.goto(f"/workflows/wf_none?team={team}")
        await wait_for_text(page, "Waiting for a supervisor of").to_be_visible()
        waiting = await page.evaluate("document.documentElement.scrollWidth")
        await page.goto("/agents")
        await wait_for_text(page, "p" * 58).to_be_visible()
        cut_off = "table => table.scrollWidth - table.clientWidth"
        hidden = [await page.get_by_role("region", name="Agents").evaluate(cut_off)]
        await page.set_viewport_size({"width": 1280, "height": 800})
        hidden.append(await page.get_by_role("region", name="Agents").evaluate(cut_off))

    assert (wide, waiting) == (390, 390)
    assert hidden == [0, 0]
    assert heights[0] == heights[1], "the page header changed its height during the outage"
    assert scale == ["0", "200 ms", "400 ms"]
