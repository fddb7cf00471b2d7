"""Only prompts that chat pages send for their own use are recognised, by their templates."""

from __future__ import annotations

import json

import pytest

from pointsman.gateway.openai.housekeeping import housekeeping_answer
from pointsman.gateway.openai.messages import Message

HISTORY = """### Chat History:
<chat_history>
USER: Where is my parcel, please? It is late
ASSISTANT: On its way
</chat_history>"""


def asked(text: str) -> str | None:
    return housekeeping_answer([Message("user", text)])


@pytest.mark.parametrize(
    ("prompt", "answer"),
    [
        ("Generate a concise, 3-5 word title with an emoji", {"title": "Where is my parcel please"}),
        ("Generate 1-3 broad tags categorizing the main themes of the chat history,", {"tags": ["General"]}),
        ("Suggest 3-5 relevant follow-up questions or prompts", {"follow_ups": []}),
        ("Analyze the chat history to determine the necessity of generating search queries", {"queries": []}),
        ("You are an autocompletion system. Continue the text in `<text>`", {"text": ""}),
    ],
)  # fmt: skip
def test_prompts_of_open_web_ui_are_answered_in_their_form(prompt: str, answer: dict[str, object]) -> None:
    assert json.loads(str(asked(f"### Task:\n{prompt}\n### Guidelines:\n- short\n{HISTORY}"))) == answer


@pytest.mark.parametrize(
    "prompt",
    [
        "Provide a concise, 5-word-or-less title for the conversation, using title case conventions. Only return the "
        "title itself.\n\nConversation:\nUser: Where is my parcel, please? It is late\nAI: On its way",
        "Please generate a concise, 5-word-or-less title for the conversation, using its same language.\n||>User:\n"
        '"Where is my parcel, please? It is late"\n||>Response:\n"On its way"',
    ],
)
def test_titles_of_libre_chat_are_plain_text(prompt: str) -> None:
    assert asked(prompt) == "Where is my parcel please"


def test_a_prompt_that_quotes_a_template_goes_to_the_team() -> None:
    template = f"### Task:\nGenerate a concise, 3-5 word title\n{HISTORY}"

    assert asked(f"What does this prompt do?\n{template}") is None
    assert (
        housekeeping_answer([Message("user", "hi"), Message("assistant", "hello"), Message("user", template)]) is None
    )
    assert asked("Generate a title for my book") is None
