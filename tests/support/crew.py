"""A team that its requests control. The request is the plan, and a task's input sets the behaviour of its agent.

Processes run this file: `pointsman supervisor crew.py`, `pointsman worker crew.py`. The agents append a line with a
JSON object for each call to the file at CREW_JOURNAL.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from pointsman import Context, agent
from pointsman.errors import TaskError
from pointsman_schemas.card import Role
from pointsman_schemas.plan import Plan
from pointsman_schemas.role_io import PlannerInput, Synthesis, SynthesizerInput
from pointsman_schemas.team import Limits, RetryPolicy, Team

__all__ = ["CREW", "Work", "planner", "steps", "synthesizer", "team", "worker"]

CREW = str(Path(__file__))
"""The file for `pointsman supervisor` and `pointsman worker`."""

team = Team(
    name="crew",
    limits=Limits(deadline=120, task_timeout=60, plan_repairs=1, tasks=2_100),
    retry=RetryPolicy(backoff=0.05, attempts=2),
)


def steps(*names: str, serial: bool = False, **work: Any) -> dict[str, Any]:
    """Return a request with one task for each name, all for the agent `worker`."""
    return {
        "tasks": [
            {
                "id": name,
                "agent": "worker",
                "intent": f"do {name}",
                "input": {"say": name, **work},
                "depends_on": names[:number][-1:] if serial else [],
            }
            for number, name in enumerate(names)
        ]
    }


@agent(name="planner", description="Takes the request for a plan", role=Role.PLAN)
async def planner(asked: PlannerInput) -> Plan:
    request = dict(asked.request) if isinstance(asked.request, dict) else {}
    return Plan.model_validate(request.get("repaired") if asked.problems and "repaired" in request else request)


@agent(name="synthesizer", description="Joins what was said", role=Role.SYNTHESIZE)
async def synthesizer(asked: SynthesizerInput, context: Context) -> Synthesis:
    said = sorted(str(report.output) for report in context.results.values() if report.status == "succeeded")
    return Synthesis(answer=" ".join([*said, *(f"({gap.task_id} is missing)" for gap in asked.gaps)]))


class Work(BaseModel):
    """Output, number of repetitions and delay in seconds. The task waits until the file `after` exists.

    An attempt before `from_attempt` fails if the file `mended_by` does not exist.
    """

    say: Any
    times: int = 1
    seconds: float = 0.0
    after: str = ""
    from_attempt: int = 1
    mended_by: str = ""


@agent(name="worker", description="Does as it is told", concurrency=64)
async def worker(work: Work, context: Context) -> Any:
    _note("start", context)
    await asyncio.sleep(work.seconds)
    while work.after and not _exists(work.after):
        await asyncio.sleep(0.02)
    if context.attempt < work.from_attempt and not _exists(work.mended_by):
        raise TaskError(f"not before attempt {work.from_attempt}", retryable=True)
    _note("end", context)
    return work.say if work.times == 1 else work.say * work.times


def _exists(name: str) -> bool:
    return bool(name) and Path(name).exists()


def _note(what: str, context: Context) -> None:
    """Append a line to the journal. The append is atomic, so processes may share the journal."""
    if journal := os.environ.get("CREW_JOURNAL"):
        line = {
            "what": what,
            "workflow": context.workflow_id,
            "task": context.task_id,
            "attempt": context.attempt,
            "key": context.idempotency_key,
            "pid": os.getpid(),
        }
        with open(journal, "a") as file:
            file.write(json.dumps(line) + "\n")
