"""Agents that are defined as functions: allowed definitions, inputs and outputs."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, cast

import pytest
from pydantic import BaseModel
from typing_extensions import TypedDict

from pointsman.authoring.agent import Agent, agent
from pointsman.authoring.context import Context
from pointsman.authoring.ports import RecordingReporter
from pointsman.errors import ConfigurationError, InvalidTokenError, NotJsonError, TaskError
from pointsman_schemas.events import Handoff, TaskReport, Usage


class Passage(BaseModel):
    text: str
    language: str


def handoff(input: Any) -> Handoff:
    return Context.for_test(input).handoff


async def run(subject: Agent, input: Any = None) -> Any:
    context = Context.for_test(input)
    return await subject.run(context.handoff, context)


async def test_a_function_with_a_model_in_and_out_is_an_agent() -> None:
    @agent(name="translator", description="Translates", skills=["translation"], concurrency=3, timeout=5)
    async def translate(passage: Passage, context: Context) -> Passage:
        context.progress("consulting the glossary")
        return Passage(text=passage.text.upper(), language=passage.language)

    output = await run(translate, {"text": "hello", "language": "de"})

    assert output == {"text": "HELLO", "language": "de"}
    assert translate.card.name == "translator"
    assert translate.card.skills == ("translation",)
    assert (translate.card.concurrency, translate.card.timeout) == (3, 5)
    assert cast(Any, translate.card.input_schema)["required"] == ["text", "language"]
    assert cast(Any, translate.card.output_schema)["title"] == "Passage"


async def test_context_is_found_by_annotation_at_any_position() -> None:
    @agent(name="a", description="d")
    async def first(ctx: Context, text: str) -> str:
        return f"{ctx.task_id} {text}"

    @agent(name="b", description="d")
    def only(anything: Context | None) -> str:
        return anything.intent if anything else ""

    assert await run(first, "hi") == "T1 hi"
    assert await run(only) == "test"


@dataclass
class Point:
    x: int
    y: int = 0


class Movie(TypedDict):
    title: str
    year: int


@pytest.mark.parametrize(
    ("annotation", "input", "output"),
    [
        (str, "text", "text"),
        (str, {"request": "the task"}, "the task"),
        (str, {"request": "the task", "more": 1}, "the task"),
        (int, 2**200, 2**200),
        (dict, {"a": [1]}, {"a": [1]}),
        (list[int], [1, 2], [1, 2]),
        (Point, {"x": 1}, {"x": 1, "y": 0}),
        (Movie, {"title": "M", "year": 1931}, {"title": "M", "year": 1931}),
        (str | None, None, None),
        (Any, {"x": None}, {"x": None}),
    ],
)
async def test_any_type_with_a_json_form_goes_in_and_out(annotation: Any, input: Any, output: Any) -> None:
    async def echo(value: Any) -> Any:
        return value

    echo.__annotations__ = {"value": annotation, "return": annotation}
    subject = agent(name="echo", description="d")(echo)

    assert await run(subject, input) == output


async def test_input_that_does_not_fit_names_the_fields_and_not_the_content() -> None:
    @agent(name="a", description="d")
    async def strict(passage: Passage) -> str:
        raise AssertionError("must not run")

    with pytest.raises(TaskError, match="language: Field required") as caught:
        await run(strict, {"text": ["secret"]})

    assert caught.value.kind == "invalid_input"
    assert not caught.value.retryable
    assert "secret" not in str(caught.value)


def _cycle() -> list[Any]:
    context: list[Any] = ["secret"]
    context.append(context)
    return context


def _deep(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [
        float("nan"), float("inf"), b"secret", object, ValueError("secret"), _deep(200), _deep(10_000),
        {frozenset({1}): "secret"}, _cycle(), {"at": [{"x": float("nan")}]},
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
@pytest.mark.parametrize("annotation", [Any, object, dict])
async def test_unserializable_output_is_refused_without_its_content(value: Any, annotation: Any) -> None:
    async def bad() -> Any:
        return value

    bad.__annotations__ = {"return": annotation}
    subject = agent(name="sloppy", description="d")(bad)

    with pytest.raises(TaskError, match="agent sloppy") as caught:
        await run(subject)

    assert caught.value.kind == "invalid_output"
    assert not caught.value.retryable
    assert "secret" not in str(caught.value)


async def test_the_declared_return_type_is_held() -> None:
    @agent(name="a", description="d")
    async def wrong() -> Passage:
        return cast(Passage, {"text": "x"})

    class Price(BaseModel):
        amount: Decimal

    @agent(name="b", description="d")
    async def priced() -> Price:
        return Price(amount=Decimal("9.90"))

    with pytest.raises(TaskError, match="language: Field required"):
        await run(wrong)
    assert await run(priced) == {"amount": "9.90"}


async def test_a_plain_function_runs_in_a_thread_with_the_callers_context() -> None:
    colour: contextvars.ContextVar[str] = contextvars.ContextVar("colour")
    seen: list[Any] = []

    @agent(name="a", description="d")
    def blocking(text: str, context: Context) -> str:
        seen.append((threading.current_thread() is threading.main_thread(), colour.get()))
        context.progress("half way")
        return text

    colour.set("blue")
    reporter = RecordingReporter()
    context = Context.for_test("x", reporter=reporter)

    assert await blocking.run(context.handoff, context) == "x"
    assert seen == [(False, "blue")]
    assert [report.message for report in reporter.reports] == ["half way"]


async def test_many_blocking_functions_hold_up_neither_the_loop_nor_each_other() -> None:
    together = threading.Barrier(50)

    @agent(name="a", description="d")
    def blocking() -> int:
        return together.wait(timeout=10)

    arrived = await asyncio.gather(*(run(blocking) for _ in range(50)))

    assert sorted(arrived) == list(range(50))


async def test_stop_iteration_and_exit_in_a_thread_are_ordinary_errors() -> None:
    @agent(name="a", description="d")
    def ended() -> None:
        raise StopIteration

    @agent(name="b", description="d")
    def leaving() -> None:
        raise SystemExit(3)

    with pytest.raises(RuntimeError, match="StopIteration"):
        await run(ended)
    with pytest.raises(RuntimeError, match="SystemExit"):
        await run(leaving)


def test_an_agent_can_still_be_called_as_the_function_it_is() -> None:
    @agent(description="d")
    def shout(text: str) -> str:
        return text.upper()

    assert shout("hi") == "HI"
    assert shout.card.name == "shout"


def test_name_and_description_come_from_the_function_unless_given() -> None:
    @agent()
    async def summarize(text: str) -> str:
        """Shortens a text
        to its point.

        More.
        """
        return text

    assert (summarize.card.name, summarize.card.description) == ("summarize", "Shortens a text to its point.")


@pytest.mark.parametrize("version", ["0.0.0", "1.12.3", "2.0.0-rc.1", "2.0.0-0a", "1.0.0-x-y.7+build.05"])
def test_a_version_is_a_semantic_one(version: str) -> None:
    @agent(name="ok", description="d", version=version)
    async def fine(text: str) -> str:
        return text

    assert fine.card.version == version


def _two(a: int, b: int) -> int: ...  # type: ignore[empty-body]
def _bare(text) -> str: ...  # type: ignore[no-untyped-def,empty-body]
def _starred(*texts: str) -> str: ...  # type: ignore[empty-body]
def _positional(text: str, /) -> str: ...  # type: ignore[empty-body]
def _contexts(a: Context, b: Context) -> str: ...  # type: ignore[empty-body]
def _unresolved(a: Nowhere) -> str: ...  # type: ignore  # noqa: F821
def _unwritable(a: threading.Lock) -> str: ...  # type: ignore
async def _generator() -> Any:
    yield 1


@pytest.mark.parametrize(
    ("function", "advice"),
    [
        (_two, "one pydantic model"),
        (_bare, "annotate it"),
        (_starred, "plain named parameters"),
        (_positional, "plain named parameters"),
        (_contexts, "keep one"),
        (_unresolved, "import the name"),
        (_unwritable, "use a pydantic model"),
        (_generator, "context.progress"),
        (Passage, "decorate a function"),
    ],
)
def test_wrong_definition_names_the_fix(function: Any, advice: str) -> None:
    with pytest.raises(ConfigurationError, match=advice) as caught:
        agent(name="wrong", description="d")(function)

    assert "wrong" in str(caught.value)


def test_an_agent_made_twice_names_its_function_and_where_it_is() -> None:
    @agent(name="inner", description="d")
    async def work(text: str) -> str:
        return text

    with pytest.raises(ConfigurationError, match=r"^agent outer is a FunctionAgent of work at .*test_agent\.py:\d+"):
        agent(name="outer", description="d")(work)


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ({"name": "a b"}, "name"),
        ({"name": "n" * 59}, "58 are allowed"),
        ({"description": " "}, "pass description"),
        ({"skills": "translation"}, r"expected \['translation'\]"),
        ({"concurrency": 0}, "concurrency"),
        ({"timeout": -1}, "timeout"),
        ({"fallback": "ok"}, "itself"),
        ({"version": "1.0"}, "1.0.0"),
        ({"version": "v1.0.0"}, "1.0.0"),
        ({"version": "1.02.0"}, "1.0.0"),
        ({"version": "1.0.0-"}, "1.0.0"),
        ({"version": "1.0.0\n"}, "1.0.0"),
    ],
)
def test_wrong_card_names_the_fix(given: dict[str, Any], advice: str) -> None:
    async def fine(text: str) -> str:
        return text

    with pytest.raises(ConfigurationError, match=advice):
        agent(**{"name": "ok", "description": "d", **given})(fine)


async def test_context_collects_what_accompanies_the_result() -> None:
    report = TaskReport(task_id="T0", agent="other", intent="i", status="succeeded", output=7)
    context = Context.for_test({"a": 1}, results=[report])

    context.record_usage(Usage(calls=1, input_tokens=5))
    context.record_usage(Usage(calls=1, output_tokens=2))
    context.set_confidence(0.5)
    context.replan("the data is st\udcffle")

    assert context.usage == Usage(calls=2, input_tokens=5, output_tokens=2)
    assert (context.confidence, context.replan_hint) == (0.5, "the data is st?le")
    assert context.results == {"T0": report}
    with pytest.raises(KeyError, match="no result of 'nope'; there are results of: T0"):
        context.results["nope"]
    with pytest.raises(ValueError, match="from 0 to 1"):
        context.set_confidence(float("nan"))


async def test_domain_events_have_ids_that_a_second_attempt_gives_again() -> None:
    class Ids(RecordingReporter):
        def __init__(self) -> None:
            super().__init__()
            self.ids: list[str] = []

        async def emit(self, event: Any, event_id: str) -> None:
            self.ids.append(event_id)

    first, second = Ids(), Ids()
    for reporter in (first, second):
        context = Context.for_test(reporter=reporter)
        await context.emit("charge_verified", {"duplicate": True})
        await context.emit("charge_verified", {"duplicate": True})

    assert first.ids == second.ids
    assert len(set(first.ids)) == 2
    for name, problem in (("a.b", InvalidTokenError), ("tool", InvalidTokenError)):
        with pytest.raises(problem):
            await context.emit(name)
    with pytest.raises(NotJsonError, match=r"data\.x"):
        context.progress("m", x=float("nan"))


async def test_calls_within_calls_are_reported_with_their_parents() -> None:
    reporter = RecordingReporter()
    context = Context.for_test(reporter=reporter)

    async def fail() -> None:
        async with context.chat("offline", "m") as outer:
            outer.record_usage(Usage(calls=1))
            async with context.tool("search"):
                pass
            raise LookupError("gone")

    with pytest.raises(LookupError):
        await fail()

    tool, chat = reporter.reports
    assert (tool.kind, tool.name, tool.error, tool.parent_span_id) == ("tool", "search", None, chat.span_id)
    assert (chat.kind, chat.error, chat.usage) == ("chat", "LookupError: gone", Usage(calls=1))
    assert tool.span_id != chat.span_id
    assert context.usage == Usage(calls=1)


def test_a_decorator_without_brackets_takes_name_and_description_from_the_function() -> None:
    @agent
    async def count_words(text: str) -> int:
        """Counts the words
        of a text.

        More.
        """
        return len(text.split())

    assert (count_words.card.name, count_words.card.description) == ("count-words", "Counts the words of a text.")
    assert cast(Any, count_words.card.input_schema)["type"] == "string"


async def test_a_plain_function_without_brackets_is_still_the_function() -> None:
    @agent
    def _shout_(text: str) -> str:
        """Shouts."""
        return text.upper()

    assert (_shout_.card.name, _shout_("hi"), await run(_shout_, "ho")) == ("shout", "HI", "HO")


def test_function_without_a_description_is_refused() -> None:
    def count_words(text: str) -> int:
        return len(text.split())

    with pytest.raises(ConfigurationError, match=r"has no description for planners; give the function count_words a"):
        agent(count_words)
    with pytest.raises(
        ConfigurationError, match=r"agent other has no description for planners; .* docstring, or write @agent"
    ):
        agent(name="other")(count_words)


def test_positional_name_is_refused_with_the_keyword_form() -> None:
    with pytest.raises(ConfigurationError, match=r"@agent\('words'\) takes its name by keyword; write @agent\(name="):
        agent("words")  # type: ignore[call-overload]
