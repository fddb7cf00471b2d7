"""The prose of the repository follows the rules of `support.language`."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from support import language
from support.docstrings import documented, missing
from support.language import ROOT, Finding, Text, check, check_text, files, texts_of


@cache
def found() -> list[Finding]:
    return check(files())


def rules(sentence: str, kind: str = "docstring") -> list[str]:
    return [rule for _, rule, _ in check_text(Text(sentence, 1, kind))]


@pytest.mark.timeout(300)  # the test reads the whole repository, which takes long on a busy machine
def test_no_sentence_breaks_a_rule() -> None:
    """`PYTHONPATH=tests python -m support.language PATH` prints findings. `banned_words.txt` lists justified uses."""
    assert [str(finding) for finding in found()] == []


BANNED_IN_TESTS = re.compile(r"\b(nobody|somebody|whoever|anew|lest|in vain)\b", re.IGNORECASE)


def test_comments_and_docstrings_of_tests_name_the_thing() -> None:
    """Tests follow the rules for these words. The other rules are for the sources and the documents."""
    paths = [path for path in (ROOT / "tests").rglob("*.py") if BANNED_IN_TESTS.search(path.read_text("utf-8"))]

    found = {path.name: text.text for path in paths for text in texts_of(path) if BANNED_IN_TESTS.search(text.text)}

    assert found == {}


def test_every_allowed_use_exists_and_has_a_reason() -> None:
    for use in language.allowances():
        assert use.reason
        assert any(use.words in finding.sentence for finding in language.check_file(ROOT / use.path)), use


@pytest.mark.parametrize(
    "sentence",
    [
        "What a commit owes.",
        "Publish the commit. What is missing is sent again.",
        "Whether it may stand.",
        "Who reads a stream.",
        "Whoever reads it gets a copy.",
        "How an agent asks its models.",
        "How many messages a stream holds.",
        "Why an attempt did not succeed.",
        "Which phase may follow which.",
        "That which was committed.",
        "Those who wait get an error.",
        "One that has left gets nothing.",
        "From when on an attempt is pointless.",
        "`reason` is text.\n\n- What failed",
        "Summary.\n\nArgs:\n    agent: Who gets the task.",
    ],
)
def test_an_indirect_question_is_refused(sentence: str) -> None:
    assert "indirect-question" in rules(sentence)


@pytest.mark.parametrize(
    "sentence",
    [
        "Publish what a commit added.",
        "Is the broker down? Start it again.",
        "What does a supervisor store?",
        "However large the body is, the header fits.",
        "Return True if the message was deleted.",
        "In which case the task fails.",
        "For example::\n\n    What is here is code.",
        "Example:\n    What is here is code.\n\nThe end.",
        "`What` is a name.",
    ],
)
def test_a_plain_sentence_or_a_real_question_passes(sentence: str) -> None:
    assert rules(sentence) == []


@pytest.mark.parametrize(
    "sentence",
    [
        "Where the spans of a workflow hang: its own trace.",
        "When the result is needed, in UTC.",
        "When to poll again.",
        "Where it was stored; 0 where it was refused.",
    ],
)
def test_a_subordinate_clause_alone_is_refused(sentence: str) -> None:
    assert set(rules(sentence)) == {"no-main-clause"}


@pytest.mark.parametrize(
    "sentence",
    [
        "When the broker restarts, the supervisor resends the outbox.",
        "Where a team names a skill, the agent is selected at the start.",
        "When a task fails, and no retry is left, the workflow ends.",
        "Whenever a card expires, the registry emits a change.",
    ],
)
def test_a_subordinate_clause_before_a_main_clause_passes(sentence: str) -> None:
    assert rules(sentence) == []


@pytest.mark.parametrize("sentence", ["Should it be lost, the next poll corrects it.", "Nor is the timer armed."])
def test_an_inverted_sentence_is_refused(sentence: str) -> None:
    assert "inverted" in rules(sentence)


def test_a_sentence_with_if_passes() -> None:
    assert rules("If the commit is lost, the next poll corrects the count.") == []


@pytest.mark.parametrize(
    "docstring",
    ["The id of a workflow.", "Seconds until the retry.", "`text` on one line.", "Returns the id.", "None if absent."],
)
def test_a_function_docstring_without_a_verb_first_is_refused(docstring: str) -> None:
    assert rules(docstring, "function") == ["not-verb-object"]


@pytest.mark.parametrize("docstring", ["Return the id of a workflow.", "Process a batch.", "Focus the search field."])
def test_a_function_docstring_with_verb_and_object_passes(docstring: str) -> None:
    assert rules(docstring, "function") == []


def test_a_property_and_a_class_may_begin_with_a_noun() -> None:
    assert rules("The id of a workflow.") == []


@pytest.mark.parametrize("docstring", ["It belongs to the stream.", "Its port.", "Everything that is measured."])
def test_a_docstring_that_starts_with_a_pronoun_is_refused(docstring: str) -> None:
    assert "pronoun-first" in rules(docstring)


@pytest.mark.parametrize(
    "heading", ["How to write an agent", "How it works", "How retention works", "When to use it", "Why NATS"]
)
def test_usual_headings_pass(heading: str) -> None:
    assert rules(heading, "heading") == []


def test_a_free_relative_as_a_heading_is_refused() -> None:
    assert rules("What the first release leaves out", "heading") == ["indirect-question"]


@pytest.mark.parametrize(
    "words",
    [
        "anew", "lest", "whoever", "whatever", "nobody", "somebody", "in hand", "is told of", "as it was", "it is as",
        "comes to nothing", "in vain", "is heard",
    ],
)  # fmt: skip
def test_banned_words_are_refused_outside_code(words: str) -> None:
    assert rules(f"The task {words} there.")
    assert rules(f"The task `{words}` starts.") == []


def test_persons_may_be_called_who() -> None:
    assert rules("A caller who waits gets the outcome.") == []
    assert rules("A supervisor who waits gets the outcome.") == ['"who" -> "that", "which", or name the thing']


def test_every_banned_word_names_a_replacement() -> None:
    assert len(language.banned()) > 50
    assert [each.pattern.pattern for each in language.banned() if not each.instead] == []


def test_all_kinds_of_prose_are_read(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        '"""What a module does."""\n'
        "# What a comment says\n"
        "LIMIT = 1\n"
        '"""What a limit is."""\n'
        "class Thing:\n"
        '    """What a thing is."""\n'
        "    def _act(self):\n"
        '        """What it does."""\n'
        '        raise ValueError(f"what {self} lacks")\n'
        'option = Option(help="What it sets")\n'
        'log(hint="What it was")\n'
    )
    page = tmp_path / "page.md"
    page.write_text(
        "# Page\n\nWhat it is.\n\n```sh\nwhat is code\n```\n\n- What a list has\n\n| a |\n|---|\n| What |\n"
    )

    assert [finding.line for finding in check([module]) if finding.rule == "indirect-question"] == [
        1,
        2,
        4,
        6,
        8,
        9,
        10,
        11,
    ]
    assert [finding.line for finding in check([page])] == [3, 9, 13]


def test_a_field_without_a_description_is_found() -> None:
    """The models of `pointsman_schemas` are published as JSON Schema, with the descriptions of their fields."""
    source = (
        "class Event(BaseModel):\n"
        "    a: int\n"
        "    b: int = Field(description='x')\n"
        "    c: Annotated[int, Field(description='x')]\n"
    )

    assert list(language.undescribed_fields(source, {"BaseModel", "Event"})) == [(2, "Event.a")]


def returns_text(text: str, limit: int = 1) -> str:
    """Return the text.

    Args:
        text: The text.

    Returns:
        The text.
    """
    return text[:limit]


def test_a_public_function_documents_every_parameter() -> None:
    assert list(missing(returns_text)) == [("args", "`Args:` lacks limit")]


def test_sections_of_a_docstring_are_read() -> None:
    assert documented(returns_text.__doc__) == {"Args": {"text"}, "Returns": set()}
