"""Invariants of every workflow, for any plan, agents and broker behaviour."""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.core import WorkflowDriver, messages
from support.world import AGENTS, World, audit, random_plan, random_workflow

from pointsman.core.decide import decide
from pointsman.core.decision import DecisionContext
from pointsman.core.model.inputs import Input
from pointsman_schemas.events import Handoff
from pointsman_schemas.team import Limits, PlanAndExecute

# Derandomized and without a database, so every machine runs the same examples and no run fails by chance.
steady = settings(
    max_examples=80,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

_TURNS = 40
"""Largest number: enough for most drawn workflows to end by themselves. Workflows with fewer end by their timers."""


@steady
@given(st.integers(0, 2**64))
def test_any_workflow_ends_once_with_a_consistent_log(seed: int) -> None:
    chance = Random(seed)
    story = random_workflow(chance).start()
    world = World(chance, story)

    for _ in range(chance.randint(0, _TURNS)):
        world.step()
        if chance.random() < 0.05:
            story.cards = tuple(chance.sample(AGENTS, chance.randint(0, len(AGENTS))))
    world.drain()

    audit(story, chance)
    length = len(story.log)
    for _ in range(5):
        world.step()
    assert len(story.log) == length, "an entry follows the end of the workflow"


@steady
@given(st.integers(0, 2**64))
def test_when_everything_succeeds_the_answer_does_not_depend_on_how_results_arrive(seed: int) -> None:
    chance = Random(seed)
    strategy = PlanAndExecute(synthesizer=chance.choice(["synthesizer", None]))
    the_plan = random_plan(chance)

    def told(shuffled: bool) -> WorkflowDriver:
        story = WorkflowDriver(strategy=strategy, limits=Limits(depth=10), cards=AGENTS).start()
        story.complete_task("plan-1", the_plan)
        past: list[Input] = []
        while not story.state.ended:
            handoffs = [each.event for each in messages(story.state) if isinstance(each.event, Handoff)]
            results: list[Input] = [story.result(each.task_id, _output(each)) for each in handoffs]
            if shuffled:
                chance.shuffle(results)
                results = results[: chance.randint(1, len(results))]
                results += chance.choices([*past, *results], k=2)
                chance.shuffle(results)
            past += results
            story.decide_and_apply(*results)
        return story

    straight, shuffled = told(False), told(True)

    assert straight.outcome.status == shuffled.outcome.status == "completed"
    assert straight.outcome.answer == shuffled.outcome.answer
    assert straight.statuses() == shuffled.statuses()
    assert straight.state.usage == shuffled.state.usage


def _output(handoff: Handoff) -> Any:
    """Return an output that depends only on the task and its input."""
    given = {each.task_id: each.output for each in handoff.context}
    return {"answer": str(given)} if handoff.task_id == "synthesis" else {"of": handoff.task_id, "given": given}


@steady
@given(st.integers(0, 2**64))
def test_deciding_again_on_the_same_inputs_decides_the_same(seed: int) -> None:
    chance = Random(seed)
    story = random_workflow(chance).start()
    world = World(chance, story)
    for _ in range(chance.randint(0, 15)):
        world.step()
    inputs = (*world.pending_results, *world.delivered)
    context = DecisionContext(story.now, story.cards)

    assert decide(story.current, inputs, context) == decide(story.current, inputs, context)
