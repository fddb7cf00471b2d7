"""Supervisors in different processes share open circuits on a real broker. Each circuit gets only one probe."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.broker import remove_streams
from support.lines import lines_of
from support.processes import System, wait_for

from pointsman.client.client import Workflow
from pointsman.errors import NotFoundError
from pointsman.settings import Settings
from pointsman_schemas.log import TaskDispatched, TaskHeld

pytestmark = pytest.mark.timeout(180)

CREW = '''
"""An agent that fails or waits while a file exists, and records each start."""

import asyncio
from pathlib import Path

from pointsman import Limits, Pipeline, RetryPolicy, Stage, Team, agent
from pointsman.errors import TaskError

HERE = Path(__file__).parent


@agent(name="alpha", description="Does the work")
async def alpha(request: str) -> str:
    with (HERE / "begun").open("a") as begun:
        begun.write("alpha\\n")
    if (HERE / "ill").exists():
        raise TaskError("the provider is down", retryable=True)
    while (HERE / "waits").exists():
        await asyncio.sleep(0.02)
    return "done"


# Long, because the probe is sent at the next check of a held task, up to 10 s later.
limits = Limits(deadline=110, task_timeout=50)
crew = Team(
    name="crew", strategy=Pipeline(stages=(Stage(agent="alpha"),)), limits=limits, retry=RetryPolicy(attempts=1)
)
'''


def begun(folder: Path) -> list[str]:
    return lines_of(folder / "begun")


async def entries(system: System, workflow: Workflow, kind: Any) -> list[Any]:
    try:
        return [entry for entry in await system.client.entries(workflow.id) if isinstance(entry, kind)]
    except NotFoundError:  # the workflow has not started yet
        return []


async def test_two_supervisors_send_one_probe_to_a_failing_agent(settings: Settings, tmp_path: Path) -> None:
    settings = settings.model_copy(update={"circuit_failures": 2, "circuit_open": 3.0, "log_level": "debug"})
    # A low limit, so that the second supervisor gets the other requests.
    settings = settings.model_copy(update={"max_running": 2})
    (tmp_path / "ill").touch()
    async with System(tmp_path, settings) as system:
        target = system.write("routes.py", CREW)
        *supervisors, _ = await asyncio.gather(*(system.supervisor(target) for _ in range(2)), system.worker(target))
        submit, circuits = system.client.submit, system.client.operations.circuits
        # Each supervisor counts its own failures. Of three failures, one of the two supervisors has counted two.
        failing = [await submit("crew", "work") for _ in range(3)]

        async def opened() -> bool:
            return "alpha" in await circuits()

        await wait_for(opened, "open circuit")
        for supervisor in supervisors:  # otherwise a supervisor sends work that looks like a probe
            await supervisor.logged("circuit_opened", agent="alpha")

        async def each_has_failed_or_waits() -> bool:  # otherwise one starts later and looks like a probe
            waits = [each for each in failing if await entries(system, each, TaskHeld)]
            return len(begun(tmp_path)) + len(waits) >= len(failing)

        await wait_for(each_has_failed_or_waits, "failure, or held task, of each")
        (tmp_path / "waits").touch()
        (tmp_path / "ill").unlink()
        before = len(begun(tmp_path))
        held: list[Workflow] = []

        async def both_hold_some() -> bool:
            held.append(await submit("crew", "work"))
            await wait_for(lambda: entries(system, held[-1], TaskHeld | TaskDispatched), "held task")
            return all(supervisor.lines("task_held") for supervisor in supervisors)

        await wait_for(both_hold_some, "held task of each supervisor")

        since = (await circuits())["alpha"].since
        waiting = [*failing, *held]  # one of these tasks may have arrived after the circuit opened

        async def one_is_sent_and_the_rest_have_looked_again() -> bool:
            sent = [entry.at for each in waiting for entry in await entries(system, each, TaskDispatched)]
            if not (sent := [at for at in sent if at > since]) or len(begun(tmp_path)) == before:
                return False
            looked = [[entry.at for entry in await entries(system, each, TaskHeld)] for each in waiting]
            return sum(1 for looks in looked if looks and looks[-1] >= sent[0]) >= len(held) - 1

        await wait_for(one_is_sent_and_the_rest_have_looked_again, "probe, and another look of the rest")
        probing = (await circuits())["alpha"].probe
        probes = begun(tmp_path)[before:]
        (tmp_path / "waits").unlink()
        outcomes = [await workflow.outcome(100) for workflow in held]
        for workflow in failing:
            await workflow.outcome(100)
        for supervisor in supervisors:  # the supervisor that did not send the probe learns its result, too
            await supervisor.logged("circuit_closed", agent="alpha")
    await remove_streams(settings)

    assert probing.split("/")[0] in {workflow.id for workflow in waiting}
    assert probes == ["alpha"]
    assert {outcome.status for outcome in outcomes} == {"completed"}
