"""`Context.ask` ends the attempt. After a person has answered, it returns the answer with its type."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest
from pydantic import BaseModel
from support.contexts import new_context

from pointsman.authoring.ask_person import ask_person
from pointsman.authoring.context import Context
from pointsman.errors import AnswerRequiredError, ConfigurationError, TaskError, UnansweredError
from pointsman_schemas.events import Answer, QuestionRequest


class Account(BaseModel):
    number: str
    currency: Literal["EUR", "USD"] = "EUR"


async def asked(work: Any) -> QuestionRequest:
    with pytest.raises(AnswerRequiredError) as caught:
        await work
    (question,) = caught.value.questions
    return question


def answered(question: QuestionRequest, **given: Any) -> Context:
    """Return the context of the next attempt, which has an answer."""
    answer = Answer(key=question.key, text=question.text, **{"verdict": "answered", **given})
    return new_context(update={"answers": (answer,)})


async def test_answer_is_returned_as_its_type() -> None:
    question = await asked(Context.for_test().ask("Which account?", output=Account))

    account = await answered(question, input={"number": "17"}).ask("Which account?", output=Account)

    assert account == Account(number="17", currency="EUR")
    assert question.input_schema is not None
    assert question.input_schema["required"] == ["number"]


async def test_choices_become_the_values_of_the_schema() -> None:
    accounts = [Account(number="1"), Account(number="2")]

    plain = await asked(Context.for_test().ask("When?", choices=["today", "later"]))
    typed = await asked(Context.for_test().ask("Which?", output=Account, choices=accounts))

    assert plain.input_schema == {"type": "string", "enum": ["today", "later"]}
    assert typed.input_schema is not None
    assert typed.input_schema["enum"] == [{"number": "1", "currency": "EUR"}, {"number": "2", "currency": "EUR"}]


@pytest.mark.parametrize("default", ["tomorrow", None])
async def test_expired_question_returns_its_default(default: str | None) -> None:
    question = await asked(Context.for_test().ask("When?", default=default, timeout=5))

    assert (question.timeout, question.has_default, question.default) == (5, True, default)
    again = answered(question, verdict="expired", input=default)
    assert await again.ask("When?", default=default, timeout=5) == default


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"verdict": "expired"}, "the question got no answer in time: When?"),
        ({"verdict": "rejected", "reason": "ask Bo", "by": "Ann"}, "a person declined to answer the question: ask Bo"),
    ],
)
async def test_question_without_an_answer_raises_an_error_without_the_persons_name(
    given: dict[str, Any], said: str
) -> None:
    question = await asked(Context.for_test().ask("When?"))

    with pytest.raises(UnansweredError) as caught:
        await answered(question, **given).ask("When?")

    assert str(caught.value) == said


async def test_answer_that_fits_no_type_fails_the_task() -> None:
    question = await asked(Context.for_test().ask("How many?", output=int))

    with pytest.raises(TaskError, match="the answer to 'How many\\?' cannot be used"):
        await answered(question, input="many").ask("How many?", output=int)


async def test_equal_questions_have_keys_of_their_own_and_the_same_in_each_attempt() -> None:
    async def keys() -> list[str]:
        context = Context.for_test()
        return [(await asked(context.ask("When?"))).key for _ in range(2)]

    first, again = await keys(), await keys()

    assert first == again
    assert len(set(first)) == 2


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"question": " "}, "asks a question of 0 characters"),
        ({"question": "x" * 4_001}, "asks a question of 4001 characters"),
        ({"choices": []}, "asks with 0 choices"),
        ({"choices": ["x"] * 101}, "asks with 101 choices"),
        ({"timeout": 0}, "expected seconds above 0"),
        ({"output": asyncio.Event}, "has no JSON form"),
    ],
)
async def test_question_that_cannot_be_asked_is_refused(given: dict[str, Any], fault: str) -> None:
    text = given.pop("question", "When?")

    with pytest.raises(ConfigurationError, match=fault):
        await Context.for_test().ask(text, **given)


async def test_tool_for_models_asks_and_returns_the_answer() -> None:
    question = await asked(ask_person.call('{"question": "When?", "choices": ["a", "b"]}', Context.for_test()))

    result = await ask_person.call('{"question": "When?", "choices": ["a", "b"]}', answered(question, input="b"))

    assert (question.text, question.input_schema) == ("When?", {"type": "string", "enum": ["a", "b"]})
    assert (result.text, result.is_error) == ("b", False)


async def test_declined_question_of_a_model_is_an_error_that_the_model_reads() -> None:
    question = await asked(ask_person.call('{"question": "When?"}', Context.for_test()))

    result = await ask_person.call('{"question": "When?"}', answered(question, verdict="rejected", reason="no"))

    assert (result.text, result.is_error) == ("ask_person failed: a person declined to answer the question: no", True)


async def test_questions_at_the_same_time_are_recorded_together() -> None:
    context = Context.for_test()

    with pytest.raises(AnswerRequiredError):
        await asyncio.gather(context.ask("When?"), context.ask("Where?"))

    assert [each.text for each in context._state.record.questions] == ["When?", "Where?"]
