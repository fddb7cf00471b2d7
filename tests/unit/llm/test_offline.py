"""The offline model: it reads what it is given, and nothing is written for one sentence."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence

import pytest
from pydantic import BaseModel, JsonValue

from pointsman.llm.offline import OFFLINE_NOTE, OfflineModel
from pointsman.llm.prompt import write_task
from pointsman.ports import ModelReply, ModelRequest, ToolSpec, Turn
from pointsman_schemas.events import Gap, TaskReport
from pointsman_schemas.plan import Plan, Selection
from pointsman_schemas.roles import ClassifierInput, MenuItem, PlannerInput, Synthesis, SynthesizerInput

KITCHEN = MenuItem(name="kitchen", description="Cooks meals: soup, bread, dinner", skills=("cooking", "recipes"))
GARDEN = MenuItem(
    name="garden", description="Grows vegetables and flowers", skills=("planting",), examples=("Water the roses",)
)
GARAGE = MenuItem(
    name="garage",
    description="Repairs bicycles and cars",
    input_schema={
        "type": "object",
        "properties": {
            "plate": {"type": "string", "pattern": r"^[A-Z]{2}-\d{3}$"},
            "budget": {"type": "number"},
            "complaint": {"type": "string"},
        },
        "required": ["plate", "complaint"],
    },
)
HOUSE = (KITCHEN, GARDEN, GARAGE)


async def ask(data: BaseModel, output: type[BaseModel], name: str, results: Sequence[TaskReport] = ()) -> ModelReply:
    turn = Turn("user", write_task(name, data.model_dump(mode="json"), results))
    return await OfflineModel().complete(
        ModelRequest("offline", "x", (turn,), output_schema=output.model_json_schema(), output_name=name)
    )


async def plan(request: str | dict[str, JsonValue], **more: object) -> Plan:
    asked = PlannerInput.model_validate({"request": request, "agents": HOUSE, **more})
    return Plan.model_validate((await ask(asked, Plan, "plan")).data)


async def select(request: str, agents: tuple[MenuItem, ...] = HOUSE) -> Selection:
    reply = await ask(ClassifierInput(request=request, agents=agents), Selection, "selection")
    return Selection.model_validate(reply.data)


async def answer(data: SynthesizerInput, results: Sequence[TaskReport] = ()) -> str:
    return Synthesis.model_validate((await ask(data, Synthesis, "synthesis", results)).data).answer


def report(task_id: str, agent: str, intent: str, output: JsonValue = None, status: str = "succeeded") -> TaskReport:
    return TaskReport(task_id=task_id, agent=agent, intent=intent, status=status, output=output)


# Planning


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
async def test_each_part_of_a_request_goes_to_the_agent_whose_card_speaks_of_it(
    request_: str, expected: dict[str, str]
) -> None:
    made = await plan(request_)

    assert {task.agent: task.intent for task in made.tasks} == expected
    assert made.cannot == ""
    assert [task.id for task in made.tasks] == [f"t{number}" for number in range(1, len(expected) + 1)]


@pytest.mark.parametrize("request_", ["Translate this into Latin", "help", "???", "¿Qué hora es?", "-", "\n"])
async def test_what_nobody_serves_is_said_with_the_reason(request_: str) -> None:
    made = await plan(request_)

    assert made.tasks == ()
    assert "as far as the offline model can tell" in made.cannot
    assert "Cooks meals" in made.cannot


async def test_agents_that_are_alike_are_meant_by_their_skill() -> None:
    alike = [MenuItem(name=name, description="Cooks meals", skills=("cooking",)) for name in ("here", "there")]
    other = MenuItem(name="else", description="Cooks meals", skills=("cooking", "baking"))

    of_two = await plan("Cook soup", agents=tuple(alike))
    of_three = await plan("Cook soup", agents=(*alike, other))

    assert [(task.agent, task.skill) for task in of_two.tasks] == [("", "cooking")]
    assert [task.skill for task in of_three.tasks] == [""], "a skill that means somebody else, too, says too little"


async def test_agents_that_are_alike_are_selected_once_and_no_less_surely_for_being_two() -> None:
    def cooks(*names: str) -> tuple[MenuItem, ...]:
        return tuple(MenuItem(name=name, description="Cooks meals", skills=("cooking",)) for name in names)

    (one,) = (await select("Cook soup", cooks("here"))).agents
    (two,) = (await select("Cook soup", cooks("here", "there"))).agents

    assert (one.agent, one.skill) == ("here", "")
    assert (two.agent, two.skill) == ("", "cooking")
    assert two.confidence == one.confidence


async def test_no_agents_at_all_is_said_as_such() -> None:
    made = await plan("Cook soup", agents=())

    assert "no agent is running" in made.cannot


async def test_a_part_that_nobody_serves_is_left_out_and_handed_on_to_be_said() -> None:
    made = await plan("Cook soup, and translate my poem into Latin")

    assert [task.agent for task in made.tasks] == ["kitchen"]
    assert 'nobody here can help with: "translate my poem into Latin"' in made.final_instruction


async def test_courtesies_and_ids_are_no_part_of_the_request() -> None:
    made = await plan("Hello! I am customer C-1001. Could you cook soup? Thanks a lot!")

    assert [(task.agent, task.intent) for task in made.tasks] == [("kitchen", "Could you cook soup?")]
    assert "nobody" not in made.final_instruction


async def test_the_same_words_for_other_agents_give_another_plan() -> None:
    other = MenuItem(name="band", description="Cooks up soup songs, and plays roses")
    made = await plan("Cook soup", agents=(other,))

    assert [task.agent for task in made.tasks] == ["band"]


async def test_the_input_follows_the_agent_s_schema_and_else_carries_the_request_and_metadata() -> None:
    made = await plan("Repair the car AB-123 for $250, and cook soup", metadata={"customer": "C-7"})
    garage, kitchen = made.tasks

    assert garage.input == {"plate": "AB-123", "budget": 250.0, "complaint": "Repair the car AB-123 for $250"}
    assert kitchen.input == {"customer": "C-7", "request": "Repair the car AB-123 for $250, and cook soup"}


async def test_a_value_may_come_from_the_metadata_or_from_an_object_request() -> None:
    by_metadata = await plan("Repair my car", metadata={"plate": "AB-123"})
    by_request = await plan({"question": "Repair my car", "plate": "CD-456"})

    assert by_metadata.tasks[0].input == {"plate": "AB-123", "complaint": "Repair my car"}
    assert isinstance(made := by_request.tasks[0].input, dict)
    assert made["plate"] == "CD-456"


async def test_what_an_object_request_is_about_asks_nobody_for_anything() -> None:
    made = await plan({"request": "Cook some soup", "text": "The car was repaired. Flowers were planted."})

    assert [(task.agent, task.intent) for task in made.tasks] == [("kitchen", "Cook some soup")]


async def test_then_makes_the_next_task_wait() -> None:
    made = await plan("Grow vegetables, then cook dinner")

    assert [(task.agent, task.depends_on) for task in made.tasks] == [("garden", ()), ("kitchen", ("t1",))]


async def test_planning_again_skips_what_succeeded_and_tries_another_agent_for_what_failed() -> None:
    spare = MenuItem(name="canteen", description="Meals when the kitchen is closed: soup, dinner")
    results = [report("t1", "garden", "plant flowers"), report("t2", "kitchen", "cook soup", status="failed")]
    made = await plan("plant flowers and cook soup", agents=(*HOUSE, spare), results=results, replan_reason="t2 failed")

    assert [(task.id, task.agent, task.intent) for task in made.tasks] == [("t3", "canteen", "cook soup")]


async def test_a_finding_leads_to_an_agent_not_used_yet() -> None:
    results = [report("t1", "kitchen", "cook soup")]
    made = await plan("cook soup", results=results, replan_reason="the vegetables are missing: grow some")

    assert [(task.id, task.agent) for task in made.tasks] == [("t2", "garden")]


async def test_nothing_left_to_try_is_said() -> None:
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
    assert "nobody" not in made.final_instruction


async def test_who_is_needed_by_others_gets_their_parts_and_each_by_itself_where_the_owner_says_so() -> None:
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


# Classifying


async def test_a_clear_request_has_one_sure_agent_and_several_domains_have_several() -> None:
    one, two = await select("Cook some soup"), await select("Cook soup and repair my bicycle")

    assert [(found.agent, found.confidence) for found in one.agents] == [("kitchen", 0.95)]
    assert {found.agent: found.intent for found in two.agents} == {
        "kitchen": "Cook soup",
        "garage": "repair my bicycle",
    }
    assert one.question == ""


async def test_an_unclear_request_gets_a_question_instead_of_a_guess() -> None:
    selection = await select("Tell me something about Latin grammar")

    assert selection.agents == ()
    assert "Cooks meals" in selection.question


async def test_a_request_between_two_agents_is_less_sure_of_each() -> None:
    twins = (KITCHEN, MenuItem(name="canteen", description="Cooks soup"))
    reply = await ask(ClassifierInput(request="Cook soup", agents=twins), Selection, "selection")

    confidences = [found.confidence for found in Selection.model_validate(reply.data).agents]
    assert len(confidences) == 2
    assert all(0.2 < confidence < 0.7 for confidence in confidences)


# Answering


async def test_an_answer_holds_every_result_and_every_gap_and_says_that_it_is_offline() -> None:
    results = [
        report("t1", "kitchen", "cook soup", "The soup is ready."),
        report("t2", "garden", "water the roses", {"summary": "The roses are wet.", "litres": 4}),
        report("t3", "garage", "repair the car", status="failed"),
    ]
    gaps = (Gap(task_id="t3", agent="garage", reason="no worker took it within 5 s"),)
    text = await answer(SynthesizerInput(request="do it all", gaps=gaps, limit="the deadline of 60 s passed"), results)

    for said in ("The soup is ready.", "The roses are wet.", "repair the car", "no worker took it within 5 s", "60 s"):
        assert said in text
    assert text.endswith(OFFLINE_NOTE)
    assert "kitchen" not in text


async def test_with_nothing_to_tell_the_answer_is_that_it_could_not_help_and_why() -> None:
    text = await answer(SynthesizerInput(request="write a poem", limit="no agent here can help"))

    assert text.startswith("I could not help with this request: 'write a poem'.")
    assert "no agent here can help" in text


async def test_what_the_plan_says_to_tell_is_told_and_notes_of_workers_are_not_repeated() -> None:
    results = [
        report("t1", "kitchen", "cook", f"Soup.\n{OFFLINE_NOTE}"),
        report("t2", "garden", "grow", f"Peas.\n{OFFLINE_NOTE}"),
    ]
    told = "Tell the caller that nobody here can help with: Latin."
    text = await answer(SynthesizerInput(request="x", final_instruction=told), results)

    assert text == f"Soup.\n\nPeas.\n\nNobody here can help with: Latin.\n\n{OFFLINE_NOTE}"


# Working with tools


def spec(name: str, description: str, properties: dict[str, JsonValue], required: Sequence[str] = ()) -> ToolSpec:
    return ToolSpec(name, description, {"type": "object", "properties": properties, "required": list(required)})


CODE: dict[str, JsonValue] = {"type": "string", "pattern": r"^ch-\d{4}$", "description": "what was charged"}
FIND = spec(
    "find_charges",
    "List the charges of a customer",
    {"customer_id": {"type": "string", "pattern": r"^C-\d{4}$", "default": "C-1001"}},
)
REFUND = spec(
    "request_refund",
    "Give money back for what was charged twice",
    {"charge_id": CODE, "reason": {"type": "string"}},
    ["charge_id", "reason"],
)
WEATHER = spec(
    "weather",
    "Tell the weather and rain of a day",
    {"day": {"type": "string", "format": "date"}, "unit": {"enum": ["celsius", "fahrenheit"]}},
    ["day"],
)
MAIL = spec(
    "send_mail",
    "Send a mail or message to somebody",
    {"email": {"type": "string"}, "copies": {"type": "integer"}},
    ["email"],
)
TOOLS = (FIND, REFUND, WEATHER, MAIL)


async def work(
    task: str,
    *turns: Turn,
    tools: Sequence[ToolSpec] = TOOLS,
    input: JsonValue = None,
    output: type[BaseModel] | None = None,
) -> ModelReply:
    schema = output.model_json_schema() if output else None
    first = Turn("user", write_task(task, input))
    return await OfflineModel().complete(
        ModelRequest("offline", "x", (first, *turns), tools=tuple(tools), output_schema=schema)
    )


def wanted(reply: ModelReply) -> dict[str, JsonValue]:
    return {call.name: json.loads(call.arguments) for call in reply.calls}


@pytest.mark.parametrize(
    ("task", "calls"),
    [
        ("List the charges of C-2002", {"find_charges": {"customer_id": "C-2002"}}),
        ("List my charges", {"find_charges": {}}),
        ("Will there be rain on 2026-12-24, in celsius?", {"weather": {"day": "2026-12-24", "unit": "celsius"}}),
        ("Send 3 copies by mail to a.b+c@example.org.", {"send_mail": {"email": "a.b+c@example.org", "copies": 3}}),
        ("Money back for ch-5002", {"request_refund": {"charge_id": "ch-5002", "reason": "Money back for ch-5002"}}),
        (
            "Mail the charges of C-2002 to me@example.org",
            {"find_charges": {"customer_id": "C-2002"}, "send_mail": {"email": "me@example.org"}},
        ),
    ],
)
async def test_tools_are_chosen_by_their_descriptions_and_filled_by_their_schemas(
    task: str, calls: dict[str, JsonValue]
) -> None:
    reply = await work(task)

    assert wanted(reply) == calls
    assert (reply.finish, reply.model, reply.usage.calls) == ("tool_calls", "offline", 1)


async def test_values_come_from_the_input_when_the_task_does_not_have_them() -> None:
    reply = await work("List my charges", input={"request": "List my charges", "customer_id": "C-3003"})

    assert wanted(reply) == {"find_charges": {"customer_id": "C-3003"}}


async def test_a_tool_that_needs_an_id_waits_for_the_tool_that_knows_it() -> None:
    first = await work("I was charged twice")
    known = json.dumps({"charges": [{"id": "ch-5002"}], "duplicates": [{"charge_id": "ch-5003"}]})
    asked = (Turn("assistant", "", first.calls), Turn("tool", known, call_id=first.calls[0].id))
    second = await work("I was charged twice", *asked)

    assert list(wanted(first)) == ["find_charges"]
    assert wanted(second) == {"request_refund": {"charge_id": "ch-5003", "reason": "I was charged twice"}}


async def test_an_id_that_never_comes_means_that_the_tool_is_not_used() -> None:
    first = await work("I was charged twice")
    told = json.dumps({"summary": "Nothing was charged twice.", "charges": [{"id": "ch-5002"}]})
    second = await work(
        "I was charged twice", Turn("assistant", "", first.calls), Turn("tool", told, call_id=first.calls[0].id)
    )

    assert second.calls == ()
    assert second.text == f"Nothing was charged twice.\n{OFFLINE_NOTE}"


async def test_reading_does_not_lead_to_acting() -> None:
    first = await work("Show the charges of October")
    told = json.dumps({"summary": "Two.", "duplicates": [{"charge_id": "ch-5003"}]})
    second = await work(
        "Show the charges of October", Turn("assistant", "", first.calls), Turn("tool", told, call_id=first.calls[0].id)
    )

    assert (list(wanted(first)), second.calls) == (["find_charges"], ())


async def test_a_tool_s_error_is_told_and_not_hidden() -> None:
    first = await work("List my charges")
    failed = Turn("tool", "the database is away", call_id=first.calls[0].id, is_error=True)
    second = await work("List my charges", Turn("assistant", "", first.calls), failed)

    assert "find_charges failed: the database is away" in second.text


async def test_without_a_tool_that_fits_it_says_that_it_cannot() -> None:
    for tools in (TOOLS, ()):
        reply = await work("Explain quantum physics", tools=tools)

        assert reply.calls == ()
        assert reply.text.startswith("I could not do this: 'Explain quantum physics'")
        assert OFFLINE_NOTE in reply.text


async def test_what_no_tool_and_no_result_speaks_of_is_said_before_what_was_found() -> None:
    async def told(task: str) -> str:
        first = await work(task, tools=(FIND,))
        return (await work(task, *called(first, ('{"summary": "Two of May."}', False)), tools=(FIND,))).text

    met, unmet = await told("Please list my charges of May"), await told("Charges, naïve origami, can't I?")

    assert met.startswith("Two of May.")
    assert unmet.startswith("This may not be what was asked, as nothing here speaks of 'naïve', 'origami'. Two of May.")


class Forecast(BaseModel):
    summary: str
    degrees: int = 0


@pytest.mark.parametrize(
    ("task", "tools", "because"),
    [
        ("Will there be rain?", TOOLS, "cannot use weather without day"),
        ("Will there be rain?", (WEATHER,), "cannot use weather without day"),
        ("Money back, I was charged", (REFUND,), "cannot use request_refund without charge_id (what was charged)"),
        ("Explain quantum physics", TOOLS, "found no tool that fits"),
    ],
)
async def test_an_output_type_is_refused_where_no_tool_can_be_used_and_text_says_the_same(
    task: str, tools: Sequence[ToolSpec], because: str
) -> None:
    typed = await work(task, tools=tools, input={"request": task}, output=Forecast)
    text = await work(task, tools=tools, input={"request": task})

    assert (typed.finish, typed.data) == ("refusal", None)
    assert because in typed.text
    assert text.finish == "stop"
    assert because in text.text
    assert text.text.startswith(f"I could not do this: {task!r}")


async def test_an_output_type_is_made_of_what_other_tasks_found_or_of_the_input_where_there_are_no_tools() -> None:
    found = report("t1", "sky", "look", {"summary": "Rain.", "degrees": 4})
    turn = Turn("user", write_task("Will there be rain?", None, [found]))
    schema = Forecast.model_json_schema()
    by_results = await OfflineModel().complete(
        ModelRequest("offline", "x", (turn,), tools=(WEATHER,), output_schema=schema)
    )
    by_input = await work("Tell it", tools=(), input={"text": "Rain.", "degrees": 4}, output=Forecast)

    assert by_results.data == by_input.data == {"summary": "Rain.", "degrees": 4}


def called(reply: ModelReply, *results: tuple[str, bool]) -> tuple[Turn, ...]:
    """The reply's tool calls and what came of each: a text, and whether it is an error."""
    ends = (
        Turn("tool", text, call_id=call.id, is_error=is_error)
        for call, (text, is_error) in zip(reply.calls, results, strict=True)
    )
    return (Turn("assistant", "", reply.calls), *ends)


AWAY = ("the sky is away", True)


@pytest.mark.parametrize("tools", [(WEATHER,), TOOLS])
async def test_an_answer_is_refused_where_every_tool_that_was_used_failed(tools: Sequence[ToolSpec]) -> None:
    task = "Will there be rain on 2026-12-24?"
    first = await work(task, tools=tools)

    typed = await work(task, *called(first, AWAY), tools=tools, output=Forecast)
    text = await work(task, *called(first, AWAY), tools=tools)

    assert (typed.finish, typed.data) == ("refusal", None)
    assert "The tool weather failed: the sky is away" in typed.text
    assert (text.finish, text.text) == ("refusal", typed.text)


class Refunded(BaseModel):
    summary: str
    refund_id: str = ""


async def test_an_output_type_is_refused_where_only_the_tool_that_was_to_help_succeeded() -> None:
    first = await work("I was charged twice")
    known = called(first, (json.dumps({"summary": "Two charges.", "charge_id": "ch-5003"}), False))
    second = await work("I was charged twice", *known)

    failed = await work("I was charged twice", *known, *called(second, ("the bank is away", True)), output=Refunded)
    lacking = await work("I was charged twice", *called(first, ('{"summary": "None."}', False)), output=Refunded)

    assert (failed.finish, lacking.finish) == ("refusal", "refusal")
    assert "request_refund failed: the bank is away" in failed.text
    assert "cannot use request_refund without charge_id" in lacking.text


async def test_an_output_type_is_refused_where_its_tool_cannot_be_used_and_other_tasks_found_something_else() -> None:
    found = report("t1", "sky", "look", {"summary": "The sky is high."})
    turn = Turn("user", write_task("Will there be rain?", None, [found]))
    asked = ModelRequest("offline", "x", (turn,), tools=(WEATHER,), output_schema=Forecast.model_json_schema())

    reply = await OfflineModel().complete(asked)

    assert (reply.finish, reply.data) == ("refusal", None)
    assert "cannot use weather without day" in reply.text


async def test_an_output_type_says_what_failed_beside_what_was_found() -> None:
    task = "Mail the charges of C-2002 to me@example.org"
    first = await work(task)

    found = json.dumps({"summary": "Two charges."})
    reply = await work(task, *called(first, (found, False), ("the mail is away", True)), output=Refunded)

    assert reply.data == {"summary": "Two charges. The tool send_mail failed: the mail is away"}


async def test_an_output_type_is_filled_from_what_is_known() -> None:
    class Bill(BaseModel):
        answer: str
        charge_id: str | None = None
        items: list[str]

    first = await work("List my charges", output=Bill)
    told = json.dumps({"summary": "One charge.", "charge_id": "ch-5001"})
    second = await work(
        "List my charges",
        Turn("assistant", "", first.calls),
        Turn("tool", told, call_id=first.calls[0].id),
        output=Bill,
    )

    assert Bill.model_validate(second.data) == Bill(answer="One charge.", charge_id="ch-5001", items=[])


async def test_an_output_type_that_only_shares_a_role_s_name_is_plain_work() -> None:
    reply = await OfflineModel().complete(
        ModelRequest(
            "offline",
            "x",
            (Turn("user", "Draw a plan of the house"),),
            output_name="plan",
            output_schema={"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
        )
    )

    assert isinstance(reply.data, dict)
    assert "I could not do this" in str(reply.data["text"])


async def test_the_same_request_gets_the_same_reply() -> None:
    assert await work("Mail the charges to me@example.org") == await work("Mail the charges to me@example.org")


def test_no_provider_s_sdk_is_loaded_until_it_is_used() -> None:
    code = (
        "import sys, pointsman.llm_agent, pointsman.llm.openai, pointsman.llm.anthropic\n"
        "from pointsman_agents.planner import planner\n"
        "planner.card\n"
        "print([name for name in ('openai', 'anthropic', 'httpx2', 'nats') if name in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
        env={"OPENAI_API_KEY": "sk-test"},
    )

    assert ran.stdout.strip() == "[]"
