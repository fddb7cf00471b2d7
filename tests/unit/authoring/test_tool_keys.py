"""Equal tool calls have one idempotency key in every attempt and process; different calls have different keys."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, BaseModel

from pointsman.authoring.context import Context
from pointsman.authoring.ports import RecordingReporter
from pointsman.authoring.tools import Tool, tool
from pointsman.errors import ConfigurationError, TaskError
from pointsman_schemas.events import Progress, QuestionRequest


async def test_each_call_has_retries_and_a_key_of_its_own() -> None:
    tries: dict[int, list[str]] = {}

    @tool(retries=1, idempotent=True)
    async def flaky(n: int, context: Context) -> int:
        """Fails at first."""
        seen = tries.setdefault(n, [])
        seen.append(context.idempotency_key)
        if n == 8 or (n in (2, 5) and len(seen) == 1):
            raise TaskError("not now", retryable=True, retry_after=0)
        return n

    context = Context.for_test()
    results = await asyncio.gather(*(flaky.call(json.dumps({"n": n}), context) for n in range(1, 9)))

    assert [result.data for result in results] == [1, 2, 3, 4, 5, 6, 7, None]
    assert results[-1].is_error
    assert {n: len(keys) for n, keys in tries.items()} == {1: 1, 2: 2, 3: 1, 4: 1, 5: 2, 6: 1, 7: 1, 8: 2}
    assert all(len(set(keys)) == 1 for keys in tries.values())
    assert len({keys[0] for keys in tries.values()}) == 8


async def test_later_attempt_gives_the_same_keys_in_any_call_order() -> None:
    keys: list[str] = []

    @tool
    async def note(a: str, context: Context) -> None:
        """Notes."""
        keys.append(context.idempotency_key)

    first, second = Context.for_test(), Context.for_test()
    for context, order in ((first, "aab"), (second, "baa")):
        for argument in order:
            await note.call(json.dumps({"a": argument}), context)

    assert keys[:3] == [keys[4], keys[5], keys[3]]
    assert len(set(keys)) == 3


async def test_an_earlier_call_of_another_tool_changes_no_key() -> None:
    keys: list[str] = []

    @tool
    async def note(a: str, context: Context) -> None:
        """Notes."""
        keys.append(context.idempotency_key)

    @tool
    async def send(a: str) -> None:
        """Sends."""

    tools: list[list[Tool[..., Any]]] = [[note], [send, note]]
    for called in tools:
        context = Context.for_test()
        for each in called:
            await each.call('{"a": "x"}', context)

    assert keys[0] == keys[1]


class _Share:
    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return f"share of {self.text}"


async def test_equal_calls_of_different_tools_or_tasks_have_different_keys() -> None:
    keys: list[str] = []

    async def note(share: Annotated[Any, AfterValidator(_Share)], context: Context) -> None:
        """Notes a share, which has no JSON form."""
        keys.append(context.idempotency_key)

    one, other = tool(name="one")(note), tool(name="other")(note)
    context, elsewhere = Context.for_test(), Context.for_test(idempotency_key="another task")
    for of, share, within in (
        (one, "1/2", context),
        (one, "1/3", context),
        (other, "1/2", context),
        (one, "1/2", elsewhere),
    ):
        await of.call(json.dumps({"share": share}), within)

    assert len(set(keys)) == 4
    asked = tool(approval=True)(note).approval_verdict('{"share": "1/2"}', context)
    assert isinstance(asked, QuestionRequest)
    assert asked.arguments == {"share": "share of 1/2"}


class _Basket(BaseModel):
    fruits: set[int] = set()
    by_day: dict[str, list[frozenset[int]]] = {}


async def test_equal_arguments_have_one_key_in_any_order() -> None:
    keys: list[str] = []

    @tool(approval=True)
    async def weigh(basket: _Basket, context: Context, days: Any = None) -> None:
        """Weighs a basket."""

    @tool
    async def note(basket: _Basket, context: Context, days: Any = None) -> None:
        """Notes a basket."""
        keys.append(context.idempotency_key)

    # A set keeps 0, 8 and 16 in the order of insertion, so equal sets differ in order, as sets of texts do by process.
    one = '{"basket": {"fruits": [0, 8, 16], "by_day": {"a": [[0, 8]], "b": []}}, "days": {"x": 1, "y": 2}}'
    same = '{"days": {"y": 2, "x": 1}, "basket": {"by_day": {"b": [], "a": [[8, 0]]}, "fruits": [16, 8, 0]}}'
    other = one.replace("[[0, 8]]", "[[0], [8]]")
    for arguments in (one, same, other):
        await note.call(arguments, Context.for_test())
    asked = [weigh.approval_verdict(arguments, Context.for_test()) for arguments in (one, same)]
    for days in ({0, 8}, {8, 0}):
        await note.run({"basket": _Basket(), "days": days}, Context.for_test())

    assert keys[0] == keys[1] != keys[2]
    assert asked[0] == asked[1]
    assert keys[3] == keys[4]


async def test_an_argument_without_a_stable_form_is_refused() -> None:
    async def weigh(thing: Annotated[Any, AfterValidator(lambda _: [object()])]) -> None:
        """Weighs a thing."""

    @tool
    async def take(thing: Any) -> str:
        """Takes a thing."""
        return "taken"

    for of in (tool(weigh), tool(approval=True)(weigh)):
        assert of.approval_verdict('{"thing": 1}', Context.for_test()) is None
        with pytest.raises(ConfigurationError, match=r"the tool weigh got <object object at 0x.*> in its arg.*; give"):
            await of.call('{"thing": 1}', Context.for_test())
    with pytest.raises(ConfigurationError, match=r"the tool take got <function .* at 0x.*>"):
        await Context.for_test().call(take, thing=lambda: 1)
    assert await Context.for_test().call(take, thing=_Share("1/2")) == "taken"


async def test_retry_repeats_calls_and_events_under_their_keys() -> None:
    keys: list[str] = []

    @tool
    async def note(context: Context) -> None:
        """Notes."""
        keys.append(context.idempotency_key)

    @tool(retries=1, idempotent=True)
    async def twice(context: Context) -> None:
        """Notes twice, and is ill at first."""
        await context.call(note)
        await context.call(note)
        await context.emit("noted")
        if len(keys) == 2:
            raise TaskError("not now", retryable=True, retry_after=0)

    reporter = _Emissions()
    context = Context.for_test(reporter=reporter)
    result = await twice.call("{}", context)

    assert not result.is_error
    assert [event.name for event in context.events] == ["noted"]
    assert keys[:2] == keys[2:]
    assert keys[0] != keys[1]
    assert len(set(reporter.ids)) == 1


class _Emissions(RecordingReporter):
    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []

    async def emit(self, event: Progress, event_id: str) -> None:
        self.ids.append(event_id)
