"""A client gets each character of an answer once and in order from any gateway. Its text equals the stored answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.client.streamed_text import StreamedTexts
from pointsman.gateway.a2a.answer_text import AnswerText, Place, TextPiece
from pointsman.gateway.streams import Position
from pointsman_schemas.card import Role
from pointsman_schemas.events import Delta


def delta(text: str, offset: int = 0, *, call: str = "c1", attempt: int = 1, role: Role = Role.SYNTHESIZE) -> Delta:
    return Delta(
        workflow_id="wf_1", task_id="s", attempt=attempt, agent="a", role=role, call=call, offset=offset, text=text
    )


def place(text: AnswerText) -> Place:
    found = Place.parse(f"42.0{text.mark}")
    assert found is not None
    return found


class Reader:
    """A client that subscribes repeatedly, each time to a gateway that has no text yet."""

    def __init__(self) -> None:
        self.got = ""
        self._mark = AnswerText()
        self.subscribe()

    def subscribe(self) -> None:
        self._text, self._pieces = AnswerText(place(self._mark)), StreamedTexts()
        self._mark = self._text

    def hear(self, piece: Delta) -> TextPiece | None:
        new = self._pieces.add(piece)
        return self.take(self._text.add(new)) if new is not None else None

    def end(self, answer: str) -> TextPiece | None:
        return self.take(self._text.end(answer))

    def take(self, piece: TextPiece | None) -> TextPiece | None:
        if piece is not None:
            self.got = self.got + piece.text if piece.append else piece.text
        return piece


@given(st.lists(st.text("aé𝄞", min_size=1, max_size=3), min_size=1, max_size=12), st.data())
def test_each_character_arrives_once_over_any_number_of_gateways(pieces: list[str], data: st.DataObject) -> None:
    reader, whole = Reader(), ""
    for number, piece in enumerate(pieces):
        if data.draw(st.booleans()):
            reader.subscribe()
        before, offset, whole = reader.got, len(whole), whole + piece
        new = reader.hear(delta(whole) if data.draw(st.booleans()) else delta(piece, offset))
        assert new is None or new.append or not before, number
        assert whole.startswith(reader.got)
    if data.draw(st.booleans()):
        reader.subscribe()
    before = reader.got

    last = reader.end(whole)

    assert reader.got == whole
    assert last == TextPiece(whole[len(before) :], bool(before))


@pytest.mark.parametrize("again", [False, True], ids=["same gateway", "another gateway"])
def test_another_text_replaces_the_earlier_text(again: bool) -> None:
    reader = Reader()
    reader.hear(delta("Dear Bob, "))
    if again:
        reader.subscribe()

    reader.hear(delta("Dear ", call="c2", attempt=2))
    reader.hear(delta("Ada, hello", 5, call="c2", attempt=2))

    assert reader.got == "Dear Ada, hello"
    assert reader.end("Dear Ada, hello.") == TextPiece(".", True)


def test_an_answer_that_is_not_the_text_is_sent_whole() -> None:
    reader = Reader()
    reader.hear(delta("a draft"))

    assert reader.end("the answer") == TextPiece("the answer", False)


def test_only_the_text_of_the_synthesizer_is_the_answer() -> None:
    reader = Reader()

    assert reader.hear(delta("thinking", role=Role.WORK)) is None
    assert reader.hear(delta("without a place", call="")) is None
    assert reader.end("done") == TextPiece("done", False)


@pytest.mark.parametrize("text", ["", "42", "42.0-5", "42.0-5-xyz", "42.0-5-9f86d081884c7d65-1", "42.0.0", "x"])
def test_a_malformed_place_is_refused(text: str) -> None:
    assert Place.parse(text) is None
    assert Place.parse("42.0-5-9f86d081884c7d65") == Place(Position(42, 0), 5, "9f86d081884c7d65")
    assert Place.parse(" 42.0 ") == Place(Position(42, 0))
