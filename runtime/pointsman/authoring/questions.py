"""Ask a person a question during an attempt. Return the answer, or end the attempt until the answer has arrived."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pointsman.authoring.attempt_state import AttemptState, without_surrogates
from pointsman.authoring.json_types import InputType, OutputType
from pointsman.errors import AnswerRequiredError, ConfigurationError, TaskError, UnansweredError
from pointsman_schemas.events import MAX_DEADLINE_S, MAX_QUESTION_CHARS, Answer, ErrorKind, QuestionRequest
from pointsman_schemas.strict_json import compact_json

__all__ = ["MAX_CHOICES", "NO_DEFAULT", "ask"]

MAX_CHOICES: Final = 100
"""Largest number of choices of one question."""

NO_DEFAULT: Final[Any] = object()
"""Value of `default` for a question without a default answer. If no answer arrives in time, `ask` raises an error."""


def ask(
    state: AttemptState, text: str, output: Any, choices: Sequence[object] | None, timeout: float | None, default: Any
) -> Any:
    """Return the answer of a person to a question.

    Args:
        state: State of the attempt or of the tool call that asks.
        text: Question.
        output: Type of the answer.
        choices: Possible answers, or None.
        timeout: Seconds to wait, or None for the team's limit.
        default: Answer if no answer arrives in time, or `NO_DEFAULT`.

    Returns:
        The answer, as a value of `output`.

    Raises:
        AnswerRequiredError: The question has no answer yet. The attempt ends.
        ConfigurationError: The question is not valid.
        UnansweredError: A person declined, or the question expired without a default.
    """
    question = _question(state, text, output, choices, timeout, default)
    answer = state.record.answer(question.key)
    if answer is None:
        state.record.record_question(question)
        raise AnswerRequiredError([question])
    if answer.verdict == "answered":
        return _value(answer, output)
    if answer.verdict == "expired" and question.has_default:
        return default
    raise UnansweredError(_no_answer_message(answer))


def _question(
    state: AttemptState, text: str, output: Any, choices: Sequence[object] | None, timeout: float | None, default: Any
) -> QuestionRequest:
    text = without_surrogates(text).strip()
    if not 0 < len(text) <= MAX_QUESTION_CHARS:
        raise ConfigurationError(
            f"agent {state.agent} asks a question of {len(text)} characters; expected 1 to {MAX_QUESTION_CHARS}"
        )
    if timeout is not None and not 0.001 <= timeout <= MAX_DEADLINE_S:
        raise ConfigurationError(
            f"agent {state.agent} asks with timeout={timeout!r}; expected seconds above 0, at most {MAX_DEADLINE_S}"
        )
    owner = f"the question of agent {state.agent}"
    schema, written = dict(InputType[Any](output, owner).schema), OutputType(output, owner)
    if choices is not None:
        if not 0 < len(choices) <= MAX_CHOICES:
            raise ConfigurationError(
                f"agent {state.agent} asks with {len(choices)} choices; expected 1 to {MAX_CHOICES}, or None"
            )
        schema["enum"] = [written.to_json(each) for each in choices]
    has_default = default is not NO_DEFAULT
    return QuestionRequest(
        about="information",
        key=state.next_key("question", text, compact_json(schema).decode()),
        text=text,
        input_schema=schema,
        timeout=timeout,
        has_default=has_default,
        default=written.to_json(default) if has_default and default is not None else None,
    )


def _value(answer: Answer, output: Any) -> Any:
    try:
        return InputType[Any](output, "the question").from_json(answer.input)
    except TaskError as error:
        raise TaskError(
            f"the answer to {answer.text!r} cannot be used: {error}", kind=ErrorKind.INVALID_INPUT
        ) from None


def _no_answer_message(answer: Answer) -> str:
    """Return the reason of a missing answer, for a model or a caller. The text does not name the person."""
    if answer.verdict == "expired":
        return f"the question got no answer in time: {answer.text}"
    return f"a person declined to answer the question{': ' if answer.reason else ''}{answer.reason}"
