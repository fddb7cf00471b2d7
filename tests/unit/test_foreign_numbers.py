"""A number from outside is a value or is refused, even if Python cannot convert the number.

`int` refuses the control characters that `str.strip` removes, superscript digits, and more than 4,300 digits. `float`
refuses an integer of more than 308 digits.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
from pydantic import JsonValue
from support.adapters import KEY, WEATHER_TOOL, asking
from support.asgi import event_stream
from support.dashboard import watching

from pointsman.bus.memory.bus import MemoryBus
from pointsman.core.completion.conflicts import find_conflicts
from pointsman.errors import ModelError
from pointsman.llm.errors import error_from_stream_event
from pointsman.llm.foreign_json import Field
from pointsman.llm.offline.arguments import Sources, extract_arguments
from pointsman.llm.openai import CHAT_COMPLETIONS, OpenAIModel
from pointsman.util.schema_validation import value_problem
from pointsman_schemas.events import MAX_RETRY_AFTER_S
from pointsman_schemas.expressions import read_path

TEXTS = ("\x1f1", "1\x1f", " " * 9 + "1", "\u00b2", "1" * 5_000)
HUGE = 10**400


def shown(given: object) -> str:
    return ascii(given)[:20]


@pytest.mark.parametrize("given", [*TEXTS, HUGE, -HUGE], ids=shown)
def test_a_count_of_tokens(given: JsonValue) -> None:
    assert Field(given).count() in (0, 1)


@pytest.mark.parametrize("given", [*TEXTS, HUGE], ids=shown)
def test_the_index_of_a_streamed_tool_call(given: JsonValue) -> None:
    request = asking(tools=(WEATHER_TOOL,))
    stream = CHAT_COMPLETIONS.stream(request)
    called = {"index": given, "id": "t1", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
    for delta, finish in (({"tool_calls": [called]}, None), ({}, "tool_calls")):
        stream.add(Field({"id": "c1", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}))

    reply = OpenAIModel("m", api_key=KEY).reply(stream.whole(), request)

    assert [call.name for call in reply.calls] == ["weather"]


@pytest.mark.parametrize("name", ["retry_after", "retryDelay", "X-RateLimit-Reset"])
@pytest.mark.parametrize("given", [*TEXTS, HUGE, -HUGE, {"seconds": HUGE}], ids=shown)
def test_the_time_to_wait_of_an_error(name: str, given: JsonValue) -> None:
    error = error_from_stream_event("p", {"error": {"code": 429, "message": "slow", name: given}})

    assert isinstance(error, ModelError)
    assert error.retry_after is None or 0 <= error.retry_after <= MAX_RETRY_AFTER_S


@pytest.mark.parametrize("code", ["0000004501234", "9" * 5_000, "\u00b2"], ids=shown)
def test_a_code_that_is_not_a_status(code: str) -> None:
    def status_of(code: str) -> int | None:
        return error_from_stream_event("p", {"error": {"code": code, "message": "no"}}).status

    assert status_of(code) == status_of("unknown")
    assert status_of("451") == 451


@pytest.mark.parametrize("index", TEXTS, ids=shown)
def test_the_index_in_the_path_of_a_condition(index: str) -> None:
    assert read_path(["a", "b"], [index]) is None


def test_a_field_in_which_two_results_differ() -> None:
    (said,) = find_conflicts({"t1": {"due": HUGE}, "t2": {"due": 1.5}})

    assert said.startswith("due: t1 says 1000000")
    assert said.endswith("; t2 says 1.5")


@pytest.mark.parametrize(
    ("number", "factor", "fits"),
    [(HUGE, 0.1, True), (HUGE + 1, 0.2, True), (HUGE, 0.3, False), (-HUGE, 7, False), (0.3, 0.1, True),
     (1e308, 3, False), (1.5, 0.5, True), (1.5, 1, False), ("x", 2, True), (True, 2, True)],
    ids=shown,
)  # fmt: skip
def test_a_number_that_a_schema_requires_to_be_a_multiple(number: JsonValue, factor: float, fits: bool) -> None:
    assert (value_problem({"multipleOf": factor}, number) == "") is fits


@pytest.mark.parametrize("kind", ["integer", "number"])
def test_an_argument_that_the_offline_model_finds_in_a_text(kind: str) -> None:
    schema: Any = {"properties": {"amount": {"type": kind}}, "required": ["amount"]}

    assert extract_arguments(schema, Sources(["pay " + "9" * 400])) is None
    assert extract_arguments(schema, Sources(["pay 12"])) == {"amount": 12}


@pytest.mark.parametrize("minutes", ["\u00b2", "\u0661", "1\x1f"], ids=shown)
async def test_the_age_in_a_query_of_the_dashboard(minutes: str) -> None:
    path = f"/api/live/workflows?minutes={quote(minutes)}"
    async with watching(MemoryBus()) as dashboard, event_stream(dashboard.app, path) as page:
        assert (await page.next()).name == "page"
