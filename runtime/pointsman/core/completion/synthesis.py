"""How the work of a workflow becomes its answer: by a synthesizer, as it is, or as a reason why there is none."""

from __future__ import annotations

from pydantic import JsonValue

from pointsman.core.budget.team_quota import used_up
from pointsman.core.completion.caller_messages import ASK_FOR_LESS, GONE, START_IT, could_not, not_served
from pointsman.core.completion.conflicts import disagreements
from pointsman.core.completion.outcome import decisions, end, gaps
from pointsman.core.decision import Draft
from pointsman.core.model.lifecycle import Phase, TaskStatus
from pointsman.core.model.state import State
from pointsman.core.tasks.dispatch import add_role_task, free_id
from pointsman_schemas.card import Role
from pointsman_schemas.events import Result
from pointsman_schemas.plan import Plan
from pointsman_schemas.role_io import JudgeInput, SynthesizerInput
from pointsman_schemas.strategies import Adaptive, Choreography, FanOut, Pipeline, Router, Supervisor
from pointsman_schemas.strict_json import compact

__all__ = [
    "answer_or_give_up",
    "ask_judge",
    "ask_synthesizer",
    "bare_results",
    "failures",
    "no_answer",
    "synthesized",
    "verdict",
    "write_answer",
]

_BARE_PART = 2
"""Of what one event may have, the part that results may take which an answer repeats as they are: the last of them may
come in the commit that ends the workflow, which then has it twice."""


def answer_or_give_up(draft: Draft, strategy: Supervisor | Adaptive | Router | Choreography) -> None:
    """Have the answer written from what was done, or say why there is none."""
    state = draft.open()
    done = [task for task in state.work() if task.status is TaskStatus.SUCCEEDED]
    if not done:
        reason = state.limit or "; ".join([*failures(state), used_up(state)]).strip("; ") or "no task was finished"
        return end(draft, Phase.FAILED, no_answer(state), reason)
    told = state.plan.final_instruction if state.plan else ""
    alone = isinstance(strategy, Router) and len(done) == 1 and len(list(state.work())) == 1
    if alone and not told:
        return end(draft, verdict(state), bare_results(draft))
    if ask_judge(draft):
        return None
    return write_answer(draft)


def no_answer(state: State) -> str:
    """What who asked is told where the work came to nothing."""
    if state.limit:
        return could_not(state.limit, START_IT if GONE in state.limit else ASK_FOR_LESS)
    errors = [task.error for task in state.work() if task.error and task.status is TaskStatus.FAILED]
    return not_served(state.workflow_id, errors)


def ask_judge(draft: Draft) -> bool:
    """Have contradictions decided, if there are any, somebody lives who can, and there is time."""
    state = draft.open()
    if state.limit or state.judge is None or draft.around.card(state.judge) is None:
        return False
    if not (found := found_disagreements(state)):
        return False
    asked = JudgeInput(request=state.input, disagreements=found)
    add_role_task(draft, free_id(state, "judge"), Role.JUDGE, state.judge, "Decide what contradicts itself", asked)
    return True


def write_answer(draft: Draft) -> None:
    """Have the answer written from what there is and what a judge has decided."""
    state = draft.open()
    strategy = state.strategy
    synthesizer = None if isinstance(strategy, Pipeline) else strategy.synthesizer
    if synthesizer is None:
        return end(draft, verdict(state), bare_results(draft))
    # Where each was asked something else, one field may mean other things: whoever wants no judge says that it does.
    contradict = isinstance(strategy, FanOut) or state.judge is not None
    return ask_synthesizer(draft, synthesizer, found_disagreements(state) if contradict else ())


def found_disagreements(state: State) -> tuple[str, ...]:
    """Those between the tasks that succeeded."""
    succeeded = (task for task in state.work() if task.status is TaskStatus.SUCCEEDED)
    return disagreements({task.id: task.result.output for task in succeeded if task.result})


def ask_synthesizer(draft: Draft, synthesizer: str, contradictions: tuple[str, ...] = ()) -> None:
    """Have the answer written, by an agent that is told what is missing and what contradicts itself."""
    state = draft.open()
    plan = state.plan or Plan()
    asked = SynthesizerInput(
        request=state.input,
        goal=plan.goal,
        final_instruction=plan.final_instruction,
        gaps=gaps(state),
        limit=state.limit,
        disagreements=contradictions,
        decisions=decisions(state),
    )
    add_role_task(draft, free_id(state, "synthesis"), Role.SYNTHESIZE, synthesizer, "Write the answer", asked)


def synthesized(draft: Draft, result: Result) -> None:
    """End the workflow with the synthesizer's answer: the field `answer` of its output, or else all of it."""
    output = result.output
    answer = output["answer"] if isinstance(output, dict) and "answer" in output else output
    end(draft, verdict(draft.open()), answer)


def bare_results(draft: Draft) -> JsonValue:
    """The tasks' own outputs: the one there is, or each under its task's id."""
    state = draft.open()
    done = {task.id: task.result.output for task in state.work() if task.result and task.status is TaskStatus.SUCCEEDED}
    bare: JsonValue = next(iter(done.values())) if len(done) == 1 else dict(done)
    if len(compact(bare)) <= draft.around.max_body // _BARE_PART:
        return bare
    return f"The results of {', '.join(done)} are too large for one event; read them with `pointsman show`."


def verdict(state: State) -> Phase:
    """Whether every task succeeded, with nothing missing from it."""
    whole = all(task.status is TaskStatus.SUCCEEDED and not (task.result and task.result.gaps) for task in state.work())
    return Phase.COMPLETED if whole and not state.limit else Phase.PARTIAL


def failures(state: State) -> list[str]:
    """Why each failed task did, a line each."""
    return [
        f"{task.id}: {task.error.message}" for task in state.work() if task.error and task.status is TaskStatus.FAILED
    ]
