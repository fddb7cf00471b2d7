"""A fan-out: the same request to every member at once; enough of them must succeed, and one answer is made of it."""

from __future__ import annotations

import math

from pointsman.core.completion.caller_messages import START_IT, could_not
from pointsman.core.completion.outcome import end
from pointsman.core.completion.synthesis import ask_judge, failures, no_answer, write_answer
from pointsman.core.decision import Draft
from pointsman.core.model.lifecycle import Phase, TaskStatus
from pointsman.core.planning.acceptance import accept_plan
from pointsman.core.planning.role_tasks import menu
from pointsman.core.tasks.availability import NOBODY
from pointsman.core.tasks.dispatch import free_ids
from pointsman_schemas.ids import as_token
from pointsman_schemas.plan import Plan, PlannedTask
from pointsman_schemas.strategies import FanOut

__all__ = ["begin_fan_out", "finish_fan_out"]

_MERGE = "Merge what the members say into one answer. Where they disagree, say who says what."


def begin_fan_out(draft: Draft, strategy: FanOut) -> None:
    """One task for each member: the skills that are asked for, or the agents the team names, whether they live or not,
    or all that live."""
    state = draft.open()
    if strategy.skills:
        ids = free_ids(state, map(as_token, skills := tuple(dict.fromkeys(strategy.skills))))
        tasks = tuple(
            PlannedTask(id=task_id, skill=skill, intent=strategy.intent or f"Serve the request as to {skill}")
            for task_id, skill in zip(ids, skills, strict=True)
        )
    else:
        members = [item.name for item in menu(draft)] if state.agents == "*" else list(dict.fromkeys(state.agents))
        if not members:
            return end(draft, Phase.FAILED, could_not(NOBODY, START_IT), NOBODY)
        intent = strategy.intent or "Serve the request from your own point of view"
        tasks = tuple(
            PlannedTask(id=task_id, agent=name, intent=intent)
            for task_id, name in zip(free_ids(state, members), members, strict=True)
        )
    return accept_plan(draft, Plan(goal="Hear every member", tasks=tasks, final_instruction=_MERGE), revision=1)


def finish_fan_out(draft: Draft, strategy: FanOut) -> None:
    """Merge, if enough members have succeeded."""
    state = draft.open()
    work = list(state.work())
    done = [task for task in work if task.status is TaskStatus.SUCCEEDED]
    needed = math.ceil(round(strategy.minimum * len(work), 6))  # 0.56 of 25 is 14.000000000000002
    if len(done) < needed:
        reason = f"{len(done)} of {len(work)} members succeeded, and at least {needed} must"
        if why := state.limit or "; ".join(failures(state)):
            reason = f"{reason}: {why}"
        return end(draft, Phase.FAILED, no_answer(state), reason)
    if ask_judge(draft):
        return None
    return write_answer(draft)
