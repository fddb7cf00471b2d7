"""A reader of streamed text gets each piece once and in order, even if it missed pieces or started late."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import factory
from support.waiting import until

from pointsman.authoring.agent import agent
from pointsman.authoring.context import Context
from pointsman.client.streamed_text import StreamedTexts
from pointsman_schemas.events import Delta
from pointsman_schemas.team import Pipeline, Stage, Team

TEAM = Team(name="crew", strategy=Pipeline(stages=(Stage(agent="a"),)))


def delta(text: str, offset: int = 0, *, call: str = "c1", attempt: int = 1, task: str = "t1") -> Delta:
    return Delta(workflow_id="wf_1", task_id=task, attempt=attempt, agent="a", call=call, offset=offset, text=text)


def read(*pieces: Delta) -> list[tuple[int, str]]:
    texts = StreamedTexts()
    return [(each.offset, each.text) for piece in pieces if (each := texts.add(piece)) is not None]


@given(st.lists(st.text("abc", min_size=1, max_size=3), min_size=1, max_size=12), st.data())
def test_pieces_are_a_beginning_of_the_text_and_all_of_it_after_a_repetition(
    pieces: list[str], data: st.DataObject
) -> None:
    """A reader may miss any piece. Later, a repetition may have this piece and all earlier pieces."""
    texts, got, whole = StreamedTexts(), "", ""
    for piece in pieces:
        kind = data.draw(st.sampled_from(["piece", "missed", "whole"]))
        offset, whole = len(whole), whole + piece
        if kind == "missed":
            continue
        new = texts.add(delta(whole) if kind == "whole" else delta(piece, offset))
        if new is not None:
            assert new.offset == len(got)
            got += new.text
        assert whole.startswith(got)
        assert kind != "whole" or got == whole


def test_text_of_another_agent_under_the_same_task_hides_no_text() -> None:
    forged = delta("forged", attempt=9).model_copy(update={"agent": "b"})

    assert read(delta("hello"), forged, delta(" Ada", 5)) == [(0, "hello"), (0, "forged"), (5, " Ada")]


def test_another_call_begins_another_text() -> None:
    assert read(delta("one "), delta("two", 4), delta("o", call="c2"), delta("ne", 1, call="c2")) == [
        (0, "one "),
        (4, "two"),
        (0, "o"),
        (1, "ne"),
    ]


def test_texts_of_two_tasks_do_not_mix() -> None:
    assert read(delta("one"), delta("two", task="t2"), delta("!", 3), delta("!", 3, task="t2")) == [
        (0, "one"),
        (0, "two"),
        (3, "!"),
        (3, "!"),
    ]


def test_text_of_an_earlier_attempt_is_left_out() -> None:
    assert read(delta("new", attempt=2, call="c2"), delta("old"), delta("er", 3, attempt=2, call="c2")) == [
        (0, "new"),
        (3, "er"),
    ]


def test_piece_without_a_call_is_passed_on() -> None:
    assert read(delta("a", call=""), delta("a", call="")) == [(0, "a"), (0, "a")]


@pytest.mark.parametrize("late", [False, True])
async def test_text_of_a_running_workflow_ends_in_its_answer(late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A late reader gets the earlier text with the next repetition."""
    monkeypatch.setattr("pointsman.engine.worker.progress_publisher._REPEAT_INTERVAL_S", 0.1)
    begun, joined = asyncio.Event(), asyncio.Event()
    words = [f"word{number} " for number in range(12)]

    @agent(name="a", description="Writes")
    async def write(request: str, context: Context) -> str:
        for number, word in enumerate(words):
            context.stream_text(word)
            await asyncio.sleep(0.06)
            if number == 4:
                begun.set()
                await joined.wait()
        return "".join(words)

    got: list[Delta] = []

    async def receive(piece: Delta) -> None:
        got.append(piece)

    async with factory.team(TEAM, [write]) as client:
        workflow = await client.submit("crew", "write")
        if late:
            await begun.wait()
        async with await workflow.stream_text(receive):
            joined.set()
            outcome = await workflow.outcome(10)
            await until(lambda: "".join(piece.text for piece in got) == outcome.answer)

    assert [piece.offset for piece in got] == [sum(len(each.text) for each in got[:n]) for n in range(len(got))]
    assert len({piece.call for piece in got}) == 1
    assert {piece.role for piece in got} == {"work"}
