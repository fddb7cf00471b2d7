"""A model gets a readable answer to every call. An author's mistake is reported when the tool is defined."""

from __future__ import annotations

import asyncio
import threading
from typing import Annotated, Any, Literal, cast

import pytest
from pydantic import BaseModel, Field
from support.contexts import new_context

from pointsman.authoring.context import Context
from pointsman.authoring.llm_agent import LLMAgent
from pointsman.authoring.ports import RecordingReporter
from pointsman.authoring.tools import Tool, ToolResult, tool
from pointsman.errors import ConfigurationError, InvalidTokenError, ModelError, PointsmanError, TaskError
from pointsman.ports.model import ModelReply
from pointsman.testing import run_team
from pointsman.testing.models import ScriptedModel, text_reply, tool_reply
from pointsman_schemas.events import Answer, ErrorKind
from pointsman_schemas.team import Pipeline, Stage, Team


class Charge(BaseModel):
    id: str
    cents: int


@tool
async def find_charges(customer: Annotated[str, Field(description="their id")], limit: int = 2) -> list[Charge]:
    """Finds what a customer
    was charged.

    Never more than ten.
    """
    return [Charge(id=f"{customer}-{number}", cents=100 * number) for number in range(limit)]


def test_a_tool_is_described_by_its_function() -> None:
    assert find_charges.name == "find_charges"
    assert find_charges.spec.description == "Finds what a customer was charged."
    assert find_charges.spec.parameters == {
        "type": "object",
        "properties": {
            "customer": {"type": "string", "title": "Customer", "description": "their id"},
            "limit": {"type": "integer", "title": "Limit", "default": 2},
        },
        "required": ["customer"],
        "additionalProperties": False,
    }


async def test_a_model_reads_text_or_json() -> None:
    @tool
    def greet(context: Context, name: str = "you") -> str:
        """Greets."""
        return f"hello {name} of {context.task_id}"

    found = await find_charges.call('{"customer": "c", "limit": 1}', Context.for_test())
    greeted = await greet.call("", Context.for_test())

    assert found == ToolResult('[{"id":"c-0","cents":0}]', [{"id": "c-0", "cents": 0}])
    assert greeted.text == "hello you of T1"


@pytest.mark.parametrize(
    "arguments",
    ["{", "[]", "null", '{"customer": NaN}', "{}", '{"customer": "c", "limit": "many"}', '{"customer": "c", "x": 1}',
     '{"customer": "\ud800"}', "[" * 5000],
)  # fmt: skip
async def test_bad_arguments_are_a_result_with_the_fix(arguments: str) -> None:
    result = await find_charges.call(arguments, Context.for_test())

    assert result.is_error
    assert result.text.startswith("bad arguments for find_charges: ")
    assert result.text.endswith("follow the schema of the tool")


async def test_exceptions_and_values_that_are_no_json_are_results() -> None:
    @tool
    async def raising() -> str:
        """Raises."""
        raise LookupError("no such customer")

    @tool
    async def late() -> str:
        """Has a bound of its own."""
        raise TimeoutError("the shop is closed")

    @tool
    async def leaving() -> str:
        """Exits."""
        raise SystemExit(1)

    @tool
    async def odd() -> Any:
        """Returns bytes."""
        return {"a": b"secret"}

    raised = await raising.call("{}", Context.for_test())
    timed_out = await late.call("{}", Context.for_test())
    left = await leaving.call("{}", Context.for_test())
    strange = await odd.call("{}", Context.for_test())

    assert raised == ToolResult("raising failed: LookupError; `pointsman trace` has the reason", is_error=True)
    assert timed_out == ToolResult("late failed: TimeoutError; `pointsman trace` has the reason", is_error=True)
    assert left.is_error
    assert strange.is_error
    assert "tool odd" in strange.text
    assert "$.a" in strange.text
    assert "secret" not in strange.text


async def test_cancellation_passes_through_and_is_reported() -> None:
    started = asyncio.Event()

    @tool
    async def endless() -> None:
        """Waits."""
        started.set()
        await asyncio.Event().wait()

    reporter = RecordingReporter()
    call = asyncio.create_task(endless.call("{}", Context.for_test(reporter=reporter)))
    await started.wait()
    call.cancel()

    with pytest.raises(asyncio.CancelledError):
        await call
    assert [report.error for report in reporter.reports] == ["cancelled"]


async def test_tool_cancelled_from_inside_is_an_error_result_and_may_be_retried() -> None:
    tries = 0

    @tool(retries=1, idempotent=True)
    async def borrowed(heals: bool) -> str:
        """Waits for a future that other code cancels."""
        nonlocal tries
        tries += 1
        if heals and tries == 2:
            return "done"
        work = asyncio.ensure_future(asyncio.Event().wait())
        work.cancel()
        await work
        return ""

    given_up = await borrowed.call('{"heals": false}', Context.for_test())
    tries = 0
    healed = await borrowed.call('{"heals": true}', Context.for_test())

    assert (given_up.is_error, given_up.text) == (True, "borrowed failed: the tool cancelled itself")
    assert (healed.is_error, healed.text, tries) == (False, "done", 2)


async def test_a_tool_that_takes_too_long_is_an_error_result() -> None:
    @tool(timeout=0.01)
    async def slow() -> None:
        """Waits."""
        await asyncio.Event().wait()

    @tool(timeout=0.01)
    def blocking() -> None:
        """Blocks."""
        release.wait(10)

    release = threading.Event()
    results = [await slow.call("{}", Context.for_test()), await blocking.call("{}", Context.for_test())]
    release.set()

    assert [result.text for result in results] == [
        "slow failed: no answer within 0.01 s", "blocking failed: no answer within 0.01 s"]  # fmt: skip


async def test_retry_pauses_double_and_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failures = [
        OSError("away"),
        TaskError("busy", retryable=True),
        ModelError("busy", retryable=True, retry_after=3),
        TaskError("busy", retryable=True, retry_after=60),
    ]
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    @tool(retries=4, idempotent=True)
    async def look() -> str:
        """Looks."""
        if failures:
            raise failures.pop(0)
        return "seen"

    monkeypatch.setattr("pointsman.authoring.tools.asyncio.sleep", sleep)
    result = await look.call("{}", Context.for_test())

    assert (result.text, slept) == ("seen", [0.2, 0.4, 3, 10])


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"verdict": "rejected", "by": "Ann", "reason": "too much"}, "was not allowed: too much"),
        ({"verdict": "rejected"}, "was not allowed"),
        ({"verdict": "expired"}, "was not allowed in time"),
    ],
)
async def test_rejected_call_is_an_error_without_the_persons_name(said: dict[str, str], told: str) -> None:
    verdict = Answer.model_validate({"tool": "pay", "arguments": {"amount": 5}, **said})
    handoff = Context.for_test().handoff.model_copy(update={"answers": (verdict,)})
    context = new_context(handoff)

    @tool(approval=True)
    async def pay(amount: int) -> str:
        """Pays."""
        return "paid"

    read = await pay.call('{"amount": 5}', context)
    with pytest.raises(TaskError) as caught:
        await context.call(pay, amount=5)

    assert read == ToolResult(f"pay failed: the use of pay {told}; do without it", is_error=True)
    assert (caught.value.kind, str(caught.value)) == (ErrorKind.REJECTED, f"the use of pay {told}")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (TaskError("never"), "never"),
        (ModelError("never", retryable=False), "ModelError; `pointsman trace` has the reason"),
        (InvalidTokenError("never"), "InvalidTokenError; `pointsman trace` has the reason"),
    ],
    ids=["of the tool's", "of a model", "of the contract"],
)
async def test_permanent_failure_is_not_retried(error: PointsmanError, text: str) -> None:
    tries = 0

    @tool(retries=5, idempotent=True)
    async def refused() -> None:
        """Refuses."""
        nonlocal tries
        tries += 1
        raise error

    result = await refused.call("{}", Context.for_test())

    assert (result.text, tries) == (f"refused failed: {text}", 1)


async def test_a_try_that_takes_too_long_is_followed_by_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pointsman.authoring.tools._FIRST_PAUSE_S", 0)
    tries = 0

    @tool(timeout=0.01, retries=1, idempotent=True)
    async def slow(heals: bool) -> str:
        """Waits."""
        nonlocal tries
        tries += 1
        return "done" if heals and tries == 2 else str(await asyncio.Event().wait())

    healed = await slow.call('{"heals": true}', Context.for_test())
    with pytest.raises(TaskError) as caught:
        await Context.for_test().call(slow, heals=False)

    assert (healed.text, tries) == ("done", 4)
    assert (caught.value.kind, caught.value.retryable) == (ErrorKind.TIMEOUT, True)


async def test_plain_function_may_return_an_awaitable() -> None:
    async def later() -> str:
        return "done"

    @tool
    def begin() -> Any:
        """Begins."""
        return later()

    assert (await begin.call("{}", Context.for_test())).text == "done"


class Orders:
    def __init__(self, *names: str) -> None:
        self.names = names


@tool
async def newest(context: Context) -> str:
    """The newest order."""
    return context.dep(Orders).names[-1]


async def test_dependency_is_found_by_type_and_a_tests_own_comes_first() -> None:
    agent = LLMAgent(
        name="a", description="d", instructions="i", tools=[newest], deps=["text", Orders("o1", "o2")],
        model=ScriptedModel(
            tool_reply(("newest", {})), text_reply("done"), tool_reply(("newest", {})), text_reply("done")
        ),
    )  # fmt: skip
    ours, theirs = Context.for_test(), Context.for_test(deps=[Orders("fake")])

    for context in (ours, theirs):
        await agent.run(context.handoff, context)

    assert isinstance(agent.model, ScriptedModel)
    told = [turn.text for request in agent.model.requests for turn in request.turns if turn.role == "tool"]
    assert told == ["o2", "fake"]


async def test_missing_dependency_names_the_fix() -> None:
    with pytest.raises(ConfigurationError, match=r"agent clerk has no dependency of type Orders; .* are: none"):
        await newest.call("{}", Context.for_test(agent="clerk"))


@pytest.mark.parametrize(
    ("script", "missing"),
    [
        (
            [tool_reply(("newest", {}), ("find_charges", {"customer": "c"}))],
            "agent clerk has no dependency of type Orders",
        ),
        ([tool_reply(("find_charges", {"customer": "c"}))], "no reply for call 2 (replies: 1)"),
    ],
    ids=["a dependency", "an answer of a script"],
)
async def test_configuration_error_in_a_tool_ends_the_task_and_is_not_shown_to_the_model(
    script: list[ModelReply], missing: str
) -> None:
    model = ScriptedModel(*script)
    clerk = LLMAgent(name="clerk", description="d", instructions="i", tools=[newest, find_charges], model=model)

    outcome = await run_team(Team(name="t", strategy=Pipeline(stages=(Stage(agent="clerk"),))), [clerk], "go on")

    assert [(task.status, task.attempts) for task in outcome.tasks] == [("failed", 1)]
    assert missing in outcome.reason
    assert [turn.text for request in model.requests for turn in request.turns if missing in turn.text] == []


async def test_code_calls_a_tool_with_the_same_checks_and_gets_its_errors() -> None:
    reporter = RecordingReporter()
    context = Context.for_test(reporter=reporter)

    @tool
    def divide(a: int, b: int) -> float:
        """Divides."""
        return a / b

    assert await context.call(divide, a=1, b=2) == 0.5
    with pytest.raises(ZeroDivisionError):
        await context.call(divide, a=1, b=0)
    with pytest.raises(TaskError, match="bad arguments for divide: b"):
        await context.call(divide, a=1, b="x")
    assert [(report.name, bool(report.error)) for report in reporter.reports] == [
        ("divide", False), ("divide", True), ("divide", True)]  # fmt: skip


async def test_parameters_may_have_names_that_models_may_not_use() -> None:
    @tool
    async def odd(json: str, _hidden: int = 1, model_config: Literal["a", "b"] = "a", copy: bool = False) -> str:
        """Takes names that pydantic keeps for itself."""
        return f"{json} {_hidden} {model_config} {copy}"

    result = await odd.call('{"json": "j", "_hidden": 2, "model_config": "b", "copy": true}', Context.for_test())

    assert result.text == "j 2 b True"
    assert sorted(cast(Any, odd.spec.parameters["properties"])) == ["_hidden", "copy", "json", "model_config"]


def test_a_tool_can_still_be_called_as_the_function_it_is() -> None:
    @tool
    def double(n: int) -> int:
        """Doubles."""
        return 2 * n

    assert (double(2), double.__name__, double.__doc__) == (4, "double", "Doubles.")
    assert isinstance(double, Tool)
    with pytest.raises(ConfigurationError, match=r"is a Tool of double at .*decorate a function"):
        tool(name="other", description="d")(double)


def test_wrong_definition_names_the_fix() -> None:
    def undescribed() -> None: ...

    def bare(a) -> None:  # type: ignore[no-untyped-def]
        """Is bare."""

    def unwritable(a: threading.Lock) -> None:
        """Takes a lock."""

    def fine() -> None:
        """Is fine."""

    for wrong, advice in (
        (lambda: tool("search")(fine), r"@tool\('search'\).*write @tool\(name='search'\)"),  # type: ignore[call-overload]
        (lambda: tool(undescribed), "docstring"),
        (lambda: tool(bare), "annotate it"),
        (lambda: tool(unwritable), "no JSON form"),
        (lambda: tool(name="a b")(fine), "expected 1 to 64"),
        (lambda: tool(retries=1)(fine), "idempotent=True"),
        (lambda: tool(timeout=0)(fine), "seconds above 0"),
        (lambda: tool(retries=-1, idempotent=True)(fine), "and 0 or more"),
        (lambda: tool(timeout="5")(fine), "timeout='5' and retries=0; expected seconds above 0"),  # type: ignore[call-overload]
    ):
        with pytest.raises(PointsmanError, match=advice):
            wrong()
