"""A pipeline: stages in a fixed order, each told what the ones before it made, each output checked before it counts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from pydantic import JsonValue

from pointsman.core.answers import bare_results, no_answer
from pointsman.core.draft import Draft, end
from pointsman.core.planning import accept_plan
from pointsman.core.state import State, Task
from pointsman.core.transitions import Phase, TaskStatus
from pointsman_schemas.card import Role
from pointsman_schemas.plan import Plan, PlannedTask
from pointsman_schemas.strategies import Check, FanOut, Pipeline

__all__ = ["begin_pipeline", "check_of", "finish_pipeline", "insufficient"]

_ANYTHING = Check()


def begin_pipeline(draft: Draft, strategy: Pipeline) -> None:
    """The stages are the plan: each waits for all before it, and gets their results."""
    names = [stage.name for stage in strategy.stages]
    tasks = tuple(
        PlannedTask(
            id=stage.name,
            agent=stage.agent or "",
            skill=stage.skill,
            intent=stage.intent or f"Do the stage {stage.name} of serving the request",
            depends_on=tuple(names[:number]),
        )
        for number, stage in enumerate(strategy.stages)
    )
    accept_plan(draft, Plan(goal="Serve the request, stage by stage", tasks=tasks), revision=1)


def finish_pipeline(draft: Draft) -> None:
    """The last stage's output is the answer; without it, the reason names the stage that failed. The stages are those
    of the plan, which a person may have changed."""
    state = draft.open()
    stages = list(state.work())
    stuck = next((stage for stage in stages if stage.status is not TaskStatus.SUCCEEDED), None)
    if stuck is None:
        last = stages[-1].result
        return end(draft, Phase.COMPLETED, last.output if last else None)
    reason = f"the stage {stuck.id} of {len(stages)} could not be done: {_why(state, stuck)}"
    done = stages[: stages.index(stuck)]
    if not done:
        return end(draft, Phase.FAILED, no_answer(state), reason)
    return end(draft, Phase.PARTIAL, bare_results(draft), f"{reason}; done before it: {_timings(done)}")


def check_of(state: State, task: Task) -> Check:
    """What the output of `task` must be like; anything will do where it is no stage and no member of a fan-out."""
    if isinstance(state.strategy, FanOut):
        return state.strategy.check if task.role is Role.WORK else _ANYTHING
    stages = state.strategy.stages if isinstance(state.strategy, Pipeline) else ()
    return next((stage.check for stage in stages if stage.name == task.id), _ANYTHING)


def insufficient(state: State, task: Task, output: JsonValue) -> str:
    """Why `output` does not pass the check of its stage; nothing when it does, or when `task` is no stage."""
    return "; ".join(_problems(check_of(state, task), output))


def _problems(check: Check, output: JsonValue) -> Iterator[str]:
    if check.fields:
        if not isinstance(output, dict):
            yield f"the output is not a JSON object; expected one with {', '.join(check.fields)}"
        elif missing := [name for name in check.fields if output.get(name) in (None, "", [], {})]:
            yield f"the output lacks {', '.join(missing)}, or has nothing there"
    if not (check.states or check.min_length):
        return
    text = " ".join(_texts(output))
    if check.states and not any(_states(text, word) for word in check.states):
        yield f"the output must state one of: {', '.join(check.states)}"
    if len(text) < check.min_length:
        yield f"the output has {len(text)} characters; at least {check.min_length} are expected"


def _states(text: str, word: str) -> bool:
    return re.search(rf"\b{re.escape(word)}\b", text, re.IGNORECASE) is not None


def _texts(value: JsonValue) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for part in value.values():
                yield from _texts(part)
        case list():
            for part in value:
                yield from _texts(part)


def _why(state: State, stage: Task) -> str:
    return stage.cause or state.limit or (stage.error.message if stage.error else f"it is {stage.status}")


def _timings(stages: Sequence[Task]) -> str:
    return ", ".join(f"{stage.id} ({stage.busy:.2f} s)" for stage in stages)
