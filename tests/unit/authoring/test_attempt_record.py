"""The record of an attempt in a memory journal has used approvals and the data for a successor."""

from __future__ import annotations

from datetime import UTC, datetime

from support.contexts import new_state
from support.journals import MemoryJournal

from pointsman.authoring.attempt_record import AttemptRecord
from pointsman.authoring.attempt_state import AttemptState
from pointsman.authoring.context import Context
from pointsman.authoring.durable_steps import DurableSteps
from pointsman.authoring.ports import AttemptUsage
from pointsman.errors import MAX_ERROR_CHARS
from pointsman.ports.model import ModelReply
from pointsman.testing.models import tool_reply
from pointsman_schemas.events import Answer, EmittedEvent, Usage

NOW = datetime(2026, 1, 5, tzinfo=UTC)


def kept(journal: MemoryJournal | None = None, *verdicts: Answer) -> AttemptRecord:
    handoff = Context.for_test().handoff.model_copy(update={"answers": verdicts})
    return AttemptRecord(handoff, "clerk", journal, lambda: NOW, AttemptUsage())


def test_approval_holds_for_its_tool_and_arguments_only() -> None:
    yes = Answer(tool="pay", arguments={"amount": 1}, verdict="approved")
    there = kept(None, yes)

    assert there.approval_verdict("pay", {"amount": 1}) is yes
    assert there.approval_verdict("refund", {"amount": 1}) is None
    assert there.approval_verdict("pay", {"amount": 2}) is None
    assert there.approval_verdict("pay", {"amount": 1}, [("refund", {"amount": 1})]) is yes
    assert there.approval_verdict("pay", {"amount": 1}, [("pay", {"amount": 1})]) is None


async def test_call_result_is_known_at_once_and_read_once_by_a_successor() -> None:
    journal = MemoryJournal()
    first, second = kept(journal), kept(journal)
    assert await first.recorded_call("k") is None

    step = await first.record_call("k", "pay", {"amount": 1}, "paid")
    known = [await second.recorded_call("k") for _ in range(2)]

    assert await first.recorded_call("k") is step
    assert known == [step, step]
    assert (step.agent, step.data, step.is_error, journal.recalled) == ("clerk", "paid", False, 2)


async def test_unstorable_call_result_is_an_error_of_bounded_length() -> None:
    step = await kept(MemoryJournal(room=10)).record_call("k", "pay", {"amount": 1}, "x" * 11)

    assert (step.data, step.is_error, len(step.text)) == (None, True, MAX_ERROR_CHARS)
    assert step.text.startswith("its result is too large to be recorded: x")


async def test_event_emitted_again_by_a_successor_is_one_event() -> None:
    journal = MemoryJournal()
    paid, event = kept(journal), EmittedEvent(name="paid", data={"amount": 1})
    await paid.record_event("k", event, lasting=True)
    await paid.record_event("j", event, lasting=False)
    other = kept(journal)

    await other.load()
    recalled = other.events
    await other.record_event("k", event, lasting=True)

    assert (paid.events, recalled, other.events) == ((event, event), (event,), (event,))


async def test_second_answer_continues_with_the_tool_results_of_the_first() -> None:
    journal = MemoryJournal()
    first, second = (DurableSteps(new_state(journal=journal)) for _ in range(2))
    await second.load()

    async def ask(_: AttemptState) -> ModelReply:
        return tool_reply(("look", {}), ("write", {}))

    await first.model_reply(1, ask)
    await first.record_result(1, 0, "seen", False)
    await second.model_reply(1, ask)

    assert (second.tool_result(1, 0), second.interrupted_calls(1, [0, 1])) == (("seen", False), [1])


async def test_tool_usage_is_kept_even_if_its_result_cannot_be() -> None:
    journal = MemoryJournal(room=10)

    text, is_error = await DurableSteps(new_state(journal=journal)).record_result(
        1, 0, "x" * 11, False, usage=Usage(calls=2)
    )

    assert (text.startswith("the tool has run, but its result of 11 characters"), is_error) == (True, True)
    assert journal.steps["result-1-0"].usage == Usage(calls=2)
