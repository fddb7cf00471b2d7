"""Run a fan-out. All members receive the request. If enough members succeed, one answer merges their results."""

from __future__ import annotations

import math

from pointsman.core.completion.caller_messages import NO_AGENT_MESSAGE, START_AGENT_ADVICE, explain_failure
from pointsman.core.completion.outcome import end_workflow
from pointsman.core.completion.synthesis import failure_answer, failure_summary, request_ruling, request_synthesis
from pointsman.core.decision import Decision
from pointsman.core.model.lifecycle import Phase, TaskStatus
from pointsman.core.model.state import unused_ids
from pointsman.core.planning.acceptance import accept_plan
from pointsman.core.planning.role_tasks import available_cards
from pointsman_schemas.ids import as_token
from pointsman_schemas.plan import Plan, PlannedTask
from pointsman_schemas.strategies import FanOut

__all__ = ["complete_fan_out", "start_fan_out"]

_MERGE_INSTRUCTIONS = "Merge what the members say into one answer. Where they disagree, say who says what."


def start_fan_out(decision: Decision, strategy: FanOut) -> None:
    """Plan one task for each member.

    The members are the skills of the strategy, if it has skills. Otherwise the members are the agents that the team
    names, live or not. If the team names no agents, the members are all live agents.
    """
    state = decision.state
    if strategy.skills:
        ids = unused_ids(state, map(as_token, skills := tuple(dict.fromkeys(strategy.skills))))
        tasks = tuple(
            PlannedTask(id=task_id, skill=skill, intent=strategy.intent or f"Serve the request as to {skill}")
            for task_id, skill in zip(ids, skills, strict=True)
        )
    else:
        members = (
            [card.name for card in available_cards(decision)]
            if state.agents == "*"
            else list(dict.fromkeys(state.agents))
        )
        if not members:
            return end_workflow(
                decision, Phase.FAILED, explain_failure(NO_AGENT_MESSAGE, START_AGENT_ADVICE), NO_AGENT_MESSAGE
            )
        intent = strategy.intent or "Serve the request from your own point of view"
        tasks = tuple(
            PlannedTask(id=task_id, agent=name, intent=intent)
            for task_id, name in zip(unused_ids(state, members), members, strict=True)
        )
    return accept_plan(
        decision, Plan(goal="Hear every member", tasks=tasks, final_instruction=_MERGE_INSTRUCTIONS), revision=1
    )


def complete_fan_out(decision: Decision, strategy: FanOut) -> None:
    """Request the merged answer, if enough members have succeeded."""
    state = decision.state
    work = list(state.plan_tasks())
    done = [task for task in work if task.status is TaskStatus.SUCCEEDED]
    # The product is rounded before `ceil`, because 0.56 * 25 is 14.000000000000002.
    needed = math.ceil(round(strategy.min_success_ratio * len(work), 6))
    if len(done) < needed:
        reason = f"{len(done)} of {len(work)} members succeeded; at least {needed} are required"
        if why := state.reached_limit or "; ".join(failure_summary(state)):
            reason = f"{reason}: {why}"
        return end_workflow(decision, Phase.FAILED, failure_answer(state), reason)
    if request_ruling(decision):
        return None
    return request_synthesis(decision)
