"""The offline model splits a request into clauses and matches agents by word stems."""

from __future__ import annotations

import pytest

from pointsman.llm.offline.keyword_matching import MatchEntry, Matcher, clauses, stems


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (
            "My calls fail, I was charged twice, and I can't log in.",
            ("My calls fail", "I was charged twice", "I can't log in"),
        ),
        ("Do it? Now! And tell me; soon", ("Do it?", "Now", "And tell me", "soon")),
        ("pay 1,000.50 today", ("pay 1,000.50 today",)),
        ("", ()),
    ],
)
def test_a_request_is_split_where_people_join_requests(text: str, parts: tuple[str, ...]) -> None:
    assert clauses(text) == parts


def test_forms_of_a_word_share_their_stem_and_ids_have_none() -> None:
    assert stems("charge charges charged charging") == ("charg",)
    assert stems("query queries") == stems("querying")
    assert stems("I am C-1001") == ()
    assert stems("429") == ("429",)


def test_word_of_an_example_weighs_less_than_one_of_a_description() -> None:
    matcher = Matcher(
        [MatchEntry("a", "", "limits", "How many may I send this month?"), MatchEntry("b", "", "charges")]
    )

    scores = [matcher.scores(text)["a"] for text in ("limits now", "send now", "How many mites?")]

    assert scores == [1.0, 0.5, 0.0]


def test_a_common_word_counts_less_than_a_rare_word() -> None:
    matcher = Matcher([MatchEntry("a", "", "account billing"), MatchEntry("b", "", "account login")])

    assert list(matcher.scores("account login")) == ["b", "a"]
    assert matcher.scores("weather") == {"a": 0.0, "b": 0.0}
    assert matcher.cover("account login", 0.2) == ("b",)
    assert Matcher([]).scores("x") == {}
    assert Matcher([]).cover("x", 0.2) == ()
