"""Reported faults of other systems with tools: killed workers and parallel calls."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.adapters import KEY, both, closing
from support.broker import remove_streams
from support.crew import CREW, steps
from support.lines import documents_of
from support.processes import System, wait_for
from support.providers import Answer, Call, FakeProvider, unpaired

from pointsman.authoring.context import Context
from pointsman.authoring.llm_agent import LLMAgent
from pointsman.authoring.tools import tool
from pointsman.ports.model import Model
from pointsman.settings import Settings
from pointsman_schemas.subjects import Subjects

pytestmark = pytest.mark.timeout(120)


# A killed worker's conversation

THINKER = '''
import asyncio, json, os, pathlib
from pointsman import Context, LLMAgent, tool

here = pathlib.Path(__file__).parent

@tool(idempotent=True)
async def step(task: str, n: int, slow: bool, context: Context) -> str:
    """One step of the work."""
    return await take(task, n, slow, context)

@tool
async def pay(task: str, n: int, slow: bool, context: Context) -> str:
    """A step that may be taken once."""
    return await take(task, n, slow, context)

async def take(task, n, slow, context):
    def note(what):
        with open(here / "steps", "a") as file:
            line = {"what": what, "task": task, "n": n, "key": context.idempotency_key, "pid": os.getpid()}
            file.write(json.dumps(line) + "\\n")
    note("start")
    while slow and not (here / "released").exists():
        await asyncio.sleep(0.02)
    note("end")
    return f"step {n} is done"

thinker = LLMAgent(
    name="thinker", description="Takes steps", instructions="Take the steps.", tools=[step, pay], model="openai:gpt-4.1"
)
'''


async def test_successor_of_a_killed_worker_gets_a_paired_history(settings: Settings, tmp_path: Path) -> None:
    plans = {  # the steps of each round of calls; steps below 0 last until the first worker is dead
        "only": [[-1]],
        "serial": [[1], [-2], [3]],
        "parallel": [[1, -2, 3]],
        "once": [[-1]],
    }

    def think(call: Call) -> Answer:
        (task,) = (name for name in plans if f'"do {name}"' in call.prompt)
        round_ = sum(message["role"] == "assistant" for message in call.body["messages"])
        if round_ == len(plans[task]):
            return Answer(f"{task} is done")
        wanted = [{"task": task, "n": abs(n), "slow": n < 0} for n in plans[task][round_]]
        name = "pay" if task == "once" else "step"
        return Answer(calls=tuple((name, arguments) for arguments in wanted))

    def noted(what: str) -> list[dict[str, Any]]:
        return [line for line in documents_of(tmp_path / "steps") if line["what"] == what]

    async def all_amid() -> bool:
        kept = Subjects(settings.namespace).step("thinker", "crew", workflow.id, "parallel", 1, "result-1-2")
        all_kept = await system.client.bus.last("results", kept) is not None
        begun, ended = ({(line["task"], line["n"]) for line in noted(what)} for what in ("start", "end"))
        return begun - ended == {("only", 1), ("serial", 2), ("parallel", 2), ("once", 1)} and all_kept

    async with FakeProvider() as provider:
        provider.when("", think)
        environment = {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": provider.openai_url}
        async with System(tmp_path, settings, **environment) as system:
            file = system.write("thinker.py", THINKER)
            _, _, first = await asyncio.gather(
                system.supervisor(CREW), system.worker(f"{CREW}:planner", f"{CREW}:synthesizer"), system.worker(file)
            )
            tasks = [task | {"agent": "thinker"} for task in steps(*plans)["tasks"]]
            workflow = await system.client.submit("crew", {"tasks": tasks})
            await wait_for(all_amid, "tool of each task under way")
            await first.kill()
            (tmp_path / "released").touch()
            await system.worker(file)
            outcome = await workflow.outcome(30)
    await remove_streams(settings)

    keys: dict[tuple[str, int], set[str]] = {}
    for line in noted("start"):
        keys.setdefault((line["task"], line["n"]), set()).add(line["key"])
    assert (outcome.status, outcome.answer) == (
        "partial",
        "only is done parallel is done serial is done (once is missing)",
    )
    assert [(gap.task_id, "may have done its work or not" in gap.reason) for gap in outcome.gaps] == [("once", True)]
    assert {task.attempts for task in outcome.tasks} == {1}
    assert [unpaired(call) for call in provider.calls if unpaired(call)] == []
    assert all(len(of_a_step) == 1 for of_a_step in keys.values())  # a repeated call has the key of the first call
    assert len({key for of_a_step in keys.values() for key in of_a_step}) == len(keys) == 8
    ended = Counter((line["task"], line["n"]) for line in noted("end"))
    assert set(ended.values()) == {1}  # finished calls are not repeated
    assert ("once", 1) not in ended  # a call that may have finished is not repeated
    rounds = sum(len(each) + 1 for name, each in plans.items() if name != "once") + 1
    assert len(provider.calls) == rounds  # no request to the model is repeated
    assert {line["pid"] for line in noted("start")} > {first.pid}


# Parallel calls


@both
async def test_of_eight_parallel_calls_those_that_fail_fail_alone(connect: Callable[[FakeProvider], Model]) -> None:
    runs: Counter[int] = Counter()

    @tool(retries=1, idempotent=True)
    async def work(n: int) -> str:
        """Does some work."""
        runs[n] += 1
        if n == 8 or (n in (2, 5, 7) and runs[n] == 1):
            if n == 5:  # a cancellation by code of the tool, not by the runtime
                lost = asyncio.ensure_future(asyncio.Event().wait())
                lost.cancel()
                await lost
            raise OSError(f"{n} is out of order")
        return f"did {n}"

    async with FakeProvider.saying(
        Answer(calls=tuple(("work", {"n": n}) for n in range(1, 9))), Answer("done but for 8")
    ) as provider:
        model = connect(provider)
        thinker = LLMAgent(name="thinker", description="Works", instructions="Work.", model=model, tools=[work])
        context = Context.for_test("work", agent="thinker")
        async with closing(model):
            output = await thinker.run(context.handoff, context)

    assert output == "done but for 8"
    assert runs == {1: 1, 2: 2, 3: 1, 4: 1, 5: 2, 6: 1, 7: 2, 8: 2}
    assert len(provider.calls) == 2
    assert all(f"did {n}" in provider.calls[1].prompt for n in range(1, 8))
    assert "work failed: OSError; `pointsman trace` has the reason" in provider.calls[1].prompt
