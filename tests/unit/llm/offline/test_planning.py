"""The offline model plans from its input, without special rules for known sentences."""

from __future__ import annotations

import pytest
from pydantic import JsonValue
from support.house import HOME_AGENTS, ask_model, report

from pointsman_schemas.plan import Plan
from pointsman_schemas.role_io import AvailableAgent, PlannerInput


async def plan(request: str | dict[str, JsonValue], **more: object) -> Plan:
    asked = PlannerInput.model_validate({"request": request, "agents": HOME_AGENTS, **more})
    return Plan.model_validate((await ask_model(asked, Plan, "plan")).data)


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ("Cook some soup", {"kitchen": "Cook some soup"}),
        ("water the roses, please", {"garden": "water the roses"}),
        ("Bake bread and plant flowers", {"kitchen": "Bake bread", "garden": "plant flowers"}),
        ("I need a recipe. My bicycle broke!", {"kitchen": "I need a recipe", "garage": "My bicycle broke"}),
        ("cook dinner, and then bake bread", {"kitchen": "cook dinner; bake bread"}),
        ("Repair the car and the bicycle", {"garage": "Repair the car; the bicycle"}),
    ],
)
async def test_each_part_of_a_request_goes_to_the_matching_agent(request_: str, expected: dict[str, str]) -> None:
    made = await plan(request_)

    assert {task.agent: task.intent for task in made.tasks} == expected
    assert made.cannot == ""
    assert [task.id for task in made.tasks] == [f"t{number}" for number in range(1, len(expected) + 1)]


@pytest.mark.parametrize("request_", ["Translate this into Latin", "help", "???", "¿Qué hora es?", "-", "\n"])
async def test_unserved_request_is_stated_with_the_reason(request_: str) -> None:
    made = await plan(request_)

    assert made.tasks == ()
    assert "as far as the offline model can tell" in made.cannot
    assert "Cooks meals" in made.cannot


async def test_similar_agents_are_selected_by_their_skill() -> None:
    alike = [AvailableAgent(name=name, description="Cooks meals", skills=("cooking",)) for name in ("here", "there")]
    other = AvailableAgent(name="else", description="Cooks meals", skills=("cooking", "baking"))

    of_two = await plan("Cook soup", agents=tuple(alike))
    of_three = await plan("Cook soup", agents=(*alike, other))

    assert [(task.agent, task.skill) for task in of_two.tasks] == [("", "cooking")]
    assert [task.skill for task in of_three.tasks] == [""], "a skill that also matches another agent must not be used"


async def test_a_plan_without_any_agent_reports_it() -> None:
    made = await plan("Cook soup", agents=())

    assert "no agent is running" in made.cannot


async def test_unserved_part_is_left_out_and_reported() -> None:
    made = await plan("Cook soup, and translate my poem into Latin")

    assert [task.agent for task in made.tasks] == ["kitchen"]
    assert 'no agent here can help with: "translate my poem into Latin"' in made.final_instruction


async def test_courtesies_and_ids_are_no_part_of_the_request() -> None:
    made = await plan("Hello! I am customer C-1001. Could you cook soup? Thanks a lot!")

    assert [(task.agent, task.intent) for task in made.tasks] == [("kitchen", "Could you cook soup?")]
    assert "no agent" not in made.final_instruction


async def test_the_same_words_for_other_agents_give_another_plan() -> None:
    other = AvailableAgent(name="band", description="Cooks up soup songs, and plays roses")
    made = await plan("Cook soup", agents=(other,))

    assert [task.agent for task in made.tasks] == ["band"]


async def test_task_input_follows_the_schema_of_the_agent() -> None:
    made = await plan("Repair the car AB-123 for $250, and cook soup", metadata={"customer": "C-7"})
    garage, kitchen = made.tasks

    assert garage.input == {"plate": "AB-123", "budget": 250.0, "complaint": "Repair the car AB-123 for $250"}
    assert kitchen.input is None, "a task without an input gets the request and its metadata, so it needs no copy"


@pytest.mark.parametrize("part", ["bake bread, ", "bake bread " + "of much flour " * 20 + ", "])
async def test_a_long_request_is_not_copied_into_its_plan(part: str) -> None:
    long = "Plant flowers and " + part * 2_000

    made = await plan(long)
    again = await plan(long, adaptive=True, results=[report(task.id, task.agent, task.intent) for task in made.tasks])

    assert {task.agent for task in made.tasks} == {"kitchen", "garden"}
    assert len(made.model_dump_json()) < 4_000
    assert (again.tasks, again.done) == ((), True), "finished work must be recognised by the beginning of its intent"


async def test_a_value_may_come_from_the_metadata_or_from_an_object_request() -> None:
    by_metadata = await plan("Repair my car", metadata={"plate": "AB-123"})
    by_request = await plan({"question": "Repair my car", "plate": "CD-456"})

    assert by_metadata.tasks[0].input == {"plate": "AB-123", "complaint": "Repair my car"}
    assert isinstance(made := by_request.tasks[0].input, dict)
    assert made["plate"] == "CD-456"


async def test_keys_of_an_object_request_match_no_agent() -> None:
    made = await plan({"request": "Cook some soup", "text": "The car was repaired. Flowers were planted."})

    assert [(task.agent, task.intent) for task in made.tasks] == [("kitchen", "Cook some soup")]


async def test_then_makes_the_next_task_wait() -> None:
    made = await plan("Grow vegetables, then cook dinner")

    assert [(task.agent, task.depends_on) for task in made.tasks] == [("garden", ()), ("kitchen", ("t1",))]


async def test_replan_skips_succeeded_tasks_and_tries_another_agent() -> None:
    spare = AvailableAgent(name="canteen", description="Meals when the kitchen is closed: soup, dinner")
    results = [report("t1", "garden", "plant flowers"), report("t2", "kitchen", "cook soup", status="failed")]
    made = await plan(
        "plant flowers and cook soup", agents=(*HOME_AGENTS, spare), results=results, replan_reason="t2 failed"
    )

    assert [(task.id, task.agent, task.intent) for task in made.tasks] == [("t3", "canteen", "cook soup")]


async def test_a_finding_leads_to_an_agent_not_used_yet() -> None:
    results = [report("t1", "kitchen", "cook soup")]
    made = await plan("cook soup", results=results, replan_reason="the vegetables are missing: grow some")

    assert [(task.id, task.agent) for task in made.tasks] == [("t2", "garden")]


async def test_a_plan_without_another_agent_reports_it() -> None:
    made = await plan("cook soup", results=[report("t1", "kitchen", "cook soup", status="failed")], replan_reason="x")

    assert made.tasks == ()
    assert made.cannot.startswith("no other agent here")


async def test_a_refused_plan_is_not_made_again() -> None:
    made = await plan("cook soup", problems=["task t1 is vague"])

    assert made.tasks == ()
    assert "task t1 is vague" in made.cannot


async def test_a_plan_has_no_more_tasks_than_it_may() -> None:
    made = await plan("cook soup, plant flowers, repair the car", max_tasks=2)

    assert len(made.tasks) == 2
    assert 'one has at most 2 tasks: "repair the car"' in made.final_instruction
    assert "no agent" not in made.final_instruction


async def test_dependencies_of_agents_shape_the_plan() -> None:
    rules = "Kitchen needs garden; garage needs garden."
    together = await plan("cook soup, and repair the car AB-123", instructions=rules)
    apart = await plan("cook soup, and repair the car AB-123", instructions=f"{rules} Each part is one for garden.")

    assert [(task.id, task.agent, task.intent, task.depends_on) for task in together.tasks] == [
        ("t1", "garden", "cook soup; repair the car AB-123", ()),
        ("t2", "kitchen", "cook soup", ("t1",)),
        ("t3", "garage", "repair the car AB-123", ("t1",)),
    ]
    assert [(task.id, task.agent, task.intent, task.depends_on) for task in apart.tasks] == [
        ("t1", "garden", "cook soup", ()),
        ("t2", "garden", "repair the car AB-123", ()),
        ("t3", "kitchen", "cook soup", ("t1", "t2")),
        ("t4", "garage", "repair the car AB-123", ("t1", "t2")),
    ]
