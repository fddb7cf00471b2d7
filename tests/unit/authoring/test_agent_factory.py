"""A factory makes an agent for a need from the listed tools and within limits. The agent runs like any other."""

from __future__ import annotations

import asyncio
from inspect import signature
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import JsonValue
from support.contexts import new_context
from support.journals import MemoryJournal

from pointsman.authoring.agent_factory import MAX_FIELDS, AgentFactory, AgentSpec
from pointsman.authoring.context import Context
from pointsman.authoring.llm_agent import LLMAgent
from pointsman.authoring.tools import tool
from pointsman.errors import ConfigurationError, TaskError
from pointsman.ports.model import Model
from pointsman.testing import ScriptedModel, run_team, text_reply, tool_reply
from pointsman_agents.planner import planner
from pointsman_schemas.events import Budget, ErrorKind
from pointsman_schemas.team import PlanAndExecute, Team


@tool(idempotent=True)
async def double(number: int) -> int:
    """Double a number."""
    return 2 * number


@tool
async def drop_table(name: str) -> str:
    """Drop a table."""
    raise AssertionError("the agent must not call this tool, because its need does not name the tool")


@tool
async def remember(context: Context) -> str:
    """What is known."""
    return context.dep(dict)["known"]  # type: ignore[no-any-return]


def factory(model: Model | None = None, **more: Any) -> AgentFactory:
    return AgentFactory(
        name="maker",
        description="Does what no other agent is for",
        tools=more.pop("tools", [double, drop_table]),
        model=model or ScriptedModel(),
        **more,
    )


async def run(maker: AgentFactory, need: JsonValue, budget: Budget | None = None, **more: Any) -> JsonValue:
    given = Context.for_test(need, agent="maker", intent="Double it")
    context = new_context(given.handoff, update={"budget": budget}, **more)
    return await maker.run(context.handoff, context)


NEED: dict[str, JsonValue] = {"instructions": "You double numbers.", "tools": ["double"], "input": {"number": 4}}


async def test_made_agent_has_the_instructions_input_and_tools_of_its_need() -> None:
    model = ScriptedModel(tool_reply(("double", {"number": 4})), text_reply("8"))

    answer = await run(factory(model), NEED)

    first, second = model.requests
    assert answer == "8"
    assert first.instructions.startswith("You double numbers.")
    assert [spec.name for spec in first.tools] == ["double"]
    assert '<input>\n{"number": 4}\n</input>' in first.turns[0].text
    assert "You double" not in first.turns[0].text
    assert [turn.text for turn in second.turns if turn.role == "tool"] == ["8"]


async def test_unrequested_tool_of_the_list_is_out_of_reach() -> None:
    model = ScriptedModel(tool_reply(("drop_table", {"name": "users"})), text_reply("I cannot"))

    await run(factory(model), NEED)

    (refused,) = [turn.text for turn in model.requests[1].turns if turn.role == "tool"]
    assert "there is no tool 'drop_table' here; the tools are: double" in refused


@pytest.mark.parametrize("bad", ['{"sum": "many", "steps": []}', '{"sum": 8}'])
async def test_the_fields_of_its_answer_are_those_of_the_need(bad: str) -> None:
    model = ScriptedModel(text_reply(bad), text_reply('{"sum": 8, "steps": ["double 4"]}'))

    answer = await run(factory(model), {**NEED, "output": {"sum": "integer", "steps": "strings"}})

    assert answer == {"sum": 8, "steps": ["double 4"]}
    assert model.requests[0].output_schema is not None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tools": ["double", "shell"]}, "the tool 'shell' is not one of: double, drop_table"),
        ({"tools": ["double", "drop_table"]}, "the agent gets 2 tools; 1 are allowed"),
        ({"instructions": "x" * 101}, "the instructions have 101 characters, and 100 are allowed"),
        ({"output": {f"f{n}": "string" for n in range(MAX_FIELDS + 1)}}, f"{MAX_FIELDS + 1} fields"),
        ({"output": {"model_dump": "string"}}, "cannot be called 'model_dump'"),
        ({"output": {"sum": "any"}}, "output.sum"),
        ({"output": {"The sum": "integer"}}, "output.The sum"),
        ({"model": "openai:dear"}, "model"),
        ({"instructions": ""}, "instructions"),
    ],
)
async def test_need_out_of_bounds_is_refused_before_any_model_call(changes: dict[str, JsonValue], said: str) -> None:
    model = ScriptedModel()

    with pytest.raises(TaskError) as caught:
        await run(factory(model, max_tools=1, max_instructions=100), {**NEED, **changes})

    assert caught.value.kind == ErrorKind.INVALID_INPUT
    assert said in str(caught.value)
    assert model.requests == []


def test_need_at_the_bounds_is_served() -> None:
    fields: dict[str, Any] = {f"f{n}": "string" for n in range(MAX_FIELDS)}
    assert factory(max_tools=0, max_instructions=1).build_agent(AgentSpec(instructions="x", output=fields))
    assert factory(max_tools=1).build_agent(AgentSpec(instructions="x", tools=("double", "double")))

    refused: list[dict[str, Any]] = [{"max_tools": -1}, {"max_instructions": 0}]
    for bounds in refused:
        with pytest.raises(ConfigurationError, match="max_tools must be at least 0, and max_instructions at least 1"):
            factory(**bounds)


async def test_made_agent_resolves_the_dependencies_of_its_tools() -> None:
    model = ScriptedModel(tool_reply(("remember", {})), text_reply("done"))

    await run(factory(model, tools=[remember], deps=[{"known": "all"}]), {"instructions": "x", "tools": ["remember"]})

    assert [turn.text for turn in model.requests[1].turns if turn.role == "tool"] == ["all"]


async def test_made_agent_stops_before_a_call_beyond_its_budget() -> None:
    model = ScriptedModel(tool_reply(("double", {"number": 4})))

    with pytest.raises(TaskError) as caught:
        await run(factory(model), NEED, Budget(calls=1))

    assert (caught.value.kind, len(model.requests)) == (ErrorKind.LIMIT, 1)


@pytest.mark.parametrize(("bound", "asked"), [({"turns": 2}, 2), ({"tokens": 25}, 0)])
async def test_made_agent_has_the_bounds_of_its_factory(bound: dict[str, int], asked: int) -> None:
    model = ScriptedModel(*[tool_reply(("double", {"number": number})) for number in range(9)])

    with pytest.raises(TaskError) as caught:
        await run(factory(model, **bound), NEED)

    assert (caught.value.kind, len(model.requests)) == (ErrorKind.LIMIT, asked)


async def test_made_agent_has_the_output_limit_and_durability_of_its_factory() -> None:
    model, journal = ScriptedModel(tool_reply(("double", {"number": 4})), text_reply("8")), MemoryJournal()

    await run(factory(model, max_tokens=70, durable=False), NEED, journal=journal)

    assert ({request.max_tokens for request in model.requests}, journal.steps) == ({70}, {})


async def test_another_replica_continues_where_one_has_died() -> None:
    journal = MemoryJournal()
    dies = ScriptedModel(tool_reply(("double", {"number": 4})), RuntimeError("the process is gone"))
    with pytest.raises(RuntimeError):
        await run(factory(dies), NEED, journal=journal)

    model = ScriptedModel(text_reply("8"))
    answer = await run(factory(model), NEED, journal=journal)

    assert (answer, len(model.requests)) == ("8", 1)


@pytest.mark.parametrize("wrong", [factory(), LLMAgent(name="a", description="b", instructions="c"), "double"])
def test_made_agents_cannot_make_or_delegate(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="which is not a tool"):
        factory(tools=[wrong])
    with pytest.raises(ConfigurationError, match="several tools named double"):
        factory(tools=[double, double])


def test_another_model_makes_another_factory() -> None:
    own, other = ScriptedModel(), ScriptedModel()
    maker = factory(own)

    changed = maker.with_model(other)

    assert [each.build_agent(AgentSpec(instructions="x")).model for each in (maker, changed)] == [own, other]


def test_factory_card_states_what_can_be_requested() -> None:
    card = factory(max_tools=2, max_instructions=50).card

    schema = Draft202012Validator(card.input_schema)
    assert schema.is_valid(NEED)
    assert not schema.is_valid({**NEED, "tools": ["shell"]})
    assert not schema.is_valid({**NEED, "instructions": "x" * 51})
    assert "double: Double a number." in str(card.input_schema)
    assert (card.model, card.description, card.output_schema) == ("scripted", "Does what no other agent is for", {})


async def test_its_card_and_its_end_are_those_of_an_agent() -> None:
    said = {"skills": ("any",), "fallback": "other", "concurrency": 2, "max_in_flight": 3, "timeout": 9.0}
    model = ScriptedModel()
    maker = factory(model, **said)

    assert maker.card.model_dump(include=set(said)) == said
    await maker.close()
    assert model.closed


def test_default_factory_has_the_bounds_of_an_agent() -> None:
    own, agents = (signature(each.__init__).parameters for each in (AgentFactory, LLMAgent))
    both = own.keys() & agents.keys() - {"self", "name", "description", "tools"}

    assert {name: own[name].default for name in both} == {name: agents[name].default for name in both}
    assert {"turns", "tokens", "max_tokens", "timeout", "concurrency", "durable"} <= both
    tools = factory().card.input_schema["properties"]["tools"]  # type: ignore[index,call-overload]
    assert (tools["maxItems"], own["max_instructions"].default) == (8, 4_000)  # type: ignore[index,call-overload]


def test_a_factory_without_tools_makes_agents_without() -> None:
    schema = Draft202012Validator(factory(tools=[]).card.input_schema)
    assert schema.is_valid({"instructions": "Think.", "tools": []})
    assert not schema.is_valid({"instructions": "Think.", "tools": ["double"]})
    assert factory(tools=[]).build_agent(AgentSpec(instructions="Think.")).card.name == "maker"
    with pytest.raises(TaskError, match="'double' is not one of: none"):
        factory(tools=[]).build_agent(AgentSpec(instructions="Think.", tools=("double",)))


def test_planner_sees_the_factory_and_the_team_gets_its_result() -> None:
    plan = (
        '{"tasks": [{"id": "t1", "agent": "maker", "intent": "Double 4", "input": {"instructions": "You double.", '
        '"tools": ["double"], "input": {"number": 4}, "output": {"sum": "integer"}}}]}'
    )
    planning = ScriptedModel(text_reply(plan))
    maker = factory().with_model(ScriptedModel(tool_reply(("double", {"number": 4})), text_reply('{"sum": 8}')))
    team = Team(name="team", agents=("maker",), strategy=PlanAndExecute(synthesizer=None))

    outcome = asyncio.run(run_team(team, [planner.with_model(planning), maker], "Double 4"))

    assert (outcome.status, outcome.answer) == ("completed", {"sum": 8})
    assert '"enum": ["double", "drop_table"]' in planning.requests[0].turns[0].text
