"""As a worker, the offline model selects tools by description, fills outputs by schema, and invents no values."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from pydantic import BaseModel, JsonValue
from support.house import report

from pointsman.llm.offline.model import OfflineModel
from pointsman.llm.offline.words import OFFLINE_NOTE
from pointsman.llm.prompt import write_task
from pointsman.ports.model import ModelReply, ModelRequest, ToolSpec, Turn


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


async def test_tool_that_needs_an_id_waits_for_the_tool_that_returns_it() -> None:
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


async def test_a_request_to_read_calls_no_tool_that_acts() -> None:
    first = await work("Show the charges of October")
    told = json.dumps({"summary": "Two.", "duplicates": [{"charge_id": "ch-5003"}]})
    second = await work(
        "Show the charges of October", Turn("assistant", "", first.calls), Turn("tool", told, call_id=first.calls[0].id)
    )

    assert (list(wanted(first)), second.calls) == (["find_charges"], ())


async def test_tool_error_is_stated_in_the_answer() -> None:
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


async def test_unsupported_part_is_stated_before_the_findings() -> None:
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
async def test_output_type_without_a_usable_tool_is_refused(task: str, tools: Sequence[ToolSpec], because: str) -> None:
    typed = await work(task, tools=tools, input={"request": task}, output=Forecast)
    text = await work(task, tools=tools, input={"request": task})

    assert (typed.finish, typed.data) == ("refusal", None)
    assert because in typed.text
    assert text.finish == "stop"
    assert because in text.text
    assert text.text.startswith(f"I could not do this: {task!r}")


async def test_output_type_is_filled_from_other_results_or_the_input() -> None:
    found = report("t1", "sky", "look", {"summary": "Rain.", "degrees": 4})
    turn = Turn("user", write_task("Will there be rain?", None, [found]))
    schema = Forecast.model_json_schema()
    by_results = await OfflineModel().complete(
        ModelRequest("offline", "x", (turn,), tools=(WEATHER,), output_schema=schema)
    )
    by_input = await work("Tell it", tools=(), input={"text": "Rain.", "degrees": 4}, output=Forecast)

    assert by_results.data == by_input.data == {"summary": "Rain.", "degrees": 4}


def called(reply: ModelReply, *results: tuple[str, bool]) -> tuple[Turn, ...]:
    """Return the reply's tool calls and their results. A result is a text, and True if it is an error."""
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


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (": not today", "The use of weather was not allowed: not today."),
        (": Not today.\nAsk Ann.", "The use of weather was not allowed: Not today. Ask Ann."),
        ("", "The use of weather was not allowed."),
        (" in time", "The use of weather was not allowed in time."),
    ],
)
async def test_rejected_call_is_explained_and_no_refusal(said: str, told: str) -> None:
    task = "Will there be rain on 2026-12-24?"
    first = await work(task, tools=(WEATHER,))
    no = (f"weather failed: the use of weather was not allowed{said}; do without it", True)

    text = await work(task, *called(first, no), tools=(WEATHER,))
    typed = await work(task, *called(first, no), tools=(WEATHER,), output=Forecast)

    assert (text.finish, text.text) == ("stop", f"I could not do this: {task!r}. {told}\n{OFFLINE_NOTE}")
    assert (typed.finish, typed.text) == ("refusal", told)


class Refunded(BaseModel):
    summary: str
    refund_id: str = ""


async def test_output_type_is_refused_if_only_a_helper_tool_succeeded() -> None:
    first = await work("I was charged twice")
    known = called(first, (json.dumps({"summary": "Two charges.", "charge_id": "ch-5003"}), False))
    second = await work("I was charged twice", *known)

    failed = await work("I was charged twice", *known, *called(second, ("the bank is away", True)), output=Refunded)
    lacking = await work("I was charged twice", *called(first, ('{"summary": "None."}', False)), output=Refunded)

    assert (failed.finish, lacking.finish) == ("refusal", "refusal")
    assert "request_refund failed: the bank is away" in failed.text
    assert "cannot use request_refund without charge_id" in lacking.text


async def test_output_type_is_refused_if_its_tool_is_unusable() -> None:
    found = report("t1", "sky", "look", {"summary": "The sky is high."})
    turn = Turn("user", write_task("Will there be rain?", None, [found]))
    asked = ModelRequest("offline", "x", (turn,), tools=(WEATHER,), output_schema=Forecast.model_json_schema())

    reply = await OfflineModel().complete(asked)

    assert (reply.finish, reply.data) == ("refusal", None)
    assert "cannot use weather without day" in reply.text


async def test_output_type_states_failures_beside_findings() -> None:
    task = "Mail the charges of C-2002 to me@example.org"
    first = await work(task)

    found = json.dumps({"summary": "Two charges."})
    reply = await work(task, *called(first, (found, False), ("the mail is away", True)), output=Refunded)

    assert reply.data == {"summary": "Two charges. The tool send_mail failed: the mail is away"}


async def test_output_type_is_filled_from_known_values() -> None:
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


async def test_output_type_named_like_a_role_field_is_plain_work() -> None:
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
