"""An LLM agent finds, repairs, refuses or truncates its model's answer."""

from __future__ import annotations

import pytest
from pydantic import BaseModel
from support.loops import Place, run

from pointsman.errors import RefusedError, TaskError
from pointsman.ports.model import ModelReply, Turn
from pointsman.testing.models import Script, text_reply


@pytest.mark.parametrize(
    "text",
    [
        '{"city": "Oslo", "people": 7}',
        '```json\n{"city": "Oslo", "people": 7}\n```',
        '\ufeff{"city": "Oslo", "people": 7}',
        'Here you are: {"city": "Oslo", "people": 7}. Anything else?',
        '{"a": {"b": 1}} is not it, but {"city": "Oslo", "people": 7} is',
        " " * 200_000 + '{"city": "Oslo", "people": 7}',
    ],
)
async def test_json_is_extracted_from_surrounding_text(text: str) -> None:
    output, model, _ = await run(text_reply(text), output=Place)

    assert output == {"city": "Oslo", "people": 7}
    assert len(model.requests) == 1


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"people": 7}', "city: Field required"),
        ('{"city": null}', "city: Input should be a valid string"),
        ('[{"city": "Oslo"}, {"city": "Rome"}]', "Input should be an object"),
        ("{'city': 'Oslo'}", "no JSON object"),
        ('{"city": "Oslo",}', "no JSON object"),
        ('{"city": "Oslo"} or {"city": "Rome"}', "2 JSON objects"),
        ('{"city": "Oslo", "people": NaN}', "no JSON object"),
        (" " * 200_000, "it is empty"),
        ("{" * 5000, "no JSON object"),
    ],
)
async def test_wrong_answer_is_repaired_once_with_the_reason(text: str, problem: str) -> None:
    output, model, _ = await run(text_reply(text), text_reply({"city": "Oslo"}), output=Place)

    *_, said, repair = model.requests[1].turns
    assert output == {"city": "Oslo", "people": 0}
    assert problem in repair.text
    assert '"required":["city"]' in repair.text
    assert said == Turn("assistant", text if text.strip() else "(nothing)")


@pytest.mark.parametrize("nothing", ["", " \n"])
async def test_an_answer_of_nothing_is_asked_for_once_more_as_text(nothing: str) -> None:
    output, model, _ = await run(text_reply(nothing), text_reply("ok"))

    *_, said, repair = model.requests[1].turns
    assert (output, said) == ("ok", Turn("assistant", "(nothing)"))  # providers refuse a turn without text
    assert repair.text == "Your answer cannot be used: it is empty. Give the answer as text."


async def test_data_that_a_model_gives_beside_its_text_is_the_answer() -> None:
    output, _, _ = await run(ModelReply(text="Here you are.", data={"city": "Oslo"}), output=Place)

    assert output == {"city": "Oslo", "people": 0}


class Notes(BaseModel):
    points: list[str] = []


async def test_object_with_other_fields_is_no_answer() -> None:
    empty, _, _ = await run(text_reply({}), output=Notes)
    mended, model, _ = await run(text_reply({"remarks": ["a"]}), text_reply({"points": ["a"]}), output=Notes)

    assert (empty, mended) == ({"points": []}, {"points": ["a"]})
    assert "it has none of the fields points" in model.requests[1].turns[-1].text


async def test_a_field_of_almost_the_right_name_is_asked_for_again() -> None:
    wrong = {"city": "Oslo", "poeple": 700_000}
    output, model, _ = await run(text_reply(wrong), text_reply({"city": "Oslo", "people": 7}), output=Place)
    further, _, _ = await run(text_reply({"city": "Oslo", "people": 7, "peoples": 1}), output=Place)

    assert output == further == {"city": "Oslo", "people": 7}
    assert "has no 'poeple'; did you mean people?" in model.requests[1].turns[-1].text


async def test_an_answer_that_stays_wrong_is_invalid_output_after_two_calls() -> None:
    error, model, _ = await run(text_reply("no"), text_reply("still no" * 1_000), output=Place)

    assert isinstance(error, TaskError)
    assert (error.kind, error.retryable, len(model.requests)) == ("invalid_output", False, 2)
    assert error.unusable_output == f"{'still no' * 500}... (4000 characters more)"


@pytest.mark.parametrize("output", [None, Place])
@pytest.mark.parametrize(
    ("script", "calls", "said"),
    [
        ([text_reply("I cannot help with that.", finish="refusal")], 1, "the model refused: I cannot help with that."),
        ([text_reply("no" * 300, finish="refusal")], 1, f"the model refused: {'no' * 250}... (100 characters more)"),
        ([text_reply("", finish="refusal")], 1, "the model refused: the provider's content filter stopped the answer"),
        ([text_reply(""), text_reply("")], 2, "the model gave an empty answer twice"),
    ],
)
async def test_a_refusal_ends_refused_without_a_loop(
    script: list[Script], calls: int, said: str, output: type[BaseModel] | None
) -> None:
    error, model, context = await run(*script, output=output)

    assert isinstance(error, RefusedError)
    assert str(error) == said
    assert len(model.requests) == context.usage.calls == calls


async def test_a_cut_answer_is_an_error_and_not_an_answer() -> None:
    error, model, _ = await run(text_reply("It was a dark and", finish="length"))

    assert isinstance(error, TaskError)
    assert (error.kind, len(model.requests)) == ("limit", 1)
