"""Answer the prompts that chat applications generate, such as prompts for titles, tags and follow-up questions.

Open WebUI and LibreChat send such prompts to the model of the conversation. The prompts are answered here, because each
prompt would otherwise start a workflow. A prompt is recognised if the conversation has only one message of the user and
no message of the assistant, and if this message or the system message begins like a template of the application.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence

from pointsman.gateway.openai.messages import Message

__all__ = ["housekeeping_answer"]

_MAX_TITLE_WORDS = 5
_MAX_HEAD_CHARS = 1_000  # number of characters of a message that are compared with the templates


def housekeeping_answer(messages: Sequence[Message]) -> str | None:
    """Return the answer to a prompt of a chat application; None for a request of a person.

    Args:
        messages: The messages.

    Returns:
        The answer, in the format that the prompt asks for.
    """
    said = [each for each in messages if each.role == "user"]
    if len(said) != 1 or any(each.role == "assistant" for each in messages):
        return None
    told = next((each.text for each in messages if each.role in ("system", "developer")), "")
    for text in (said[0].text, told):
        head = text.lstrip()[:_MAX_HEAD_CHARS]
        for pattern, answer in _TEMPLATES:
            if pattern.match(head):
                return answer(said[0].text)
    return None


def _title_of(prompt: str) -> str:
    """Return a title: in the conversation that the prompt quotes, the first words of the user's first message."""
    quoted = re.search(r"<chat_history>(.*?)</chat_history>", prompt, re.DOTALL)
    text = quoted[1] if quoted else prompt.rpartition("||>")[0] or prompt
    first = re.search(r"(?:^|\n|>)\s*(?:USER|User|Human|user)\s*:\s*\n?\s*\"?([^\n\"]+)", text)
    words = re.sub(r"[^\w\s'-]", " ", first[1] if first else "").split()
    return " ".join(words[:_MAX_TITLE_WORDS]) or "Conversation"


def _constant(value: object) -> Callable[[str], str]:
    return lambda prompt: json.dumps(value)


_TASK = r"###\s*Task:\s*\n\s*"
_TEMPLATES: Sequence[tuple[re.Pattern[str], Callable[[str], str]]] = (
    # Open WebUI
    (re.compile(_TASK + r"Generate a concise, 3-5 word title"), lambda text: json.dumps({"title": _title_of(text)})),
    (re.compile(_TASK + r"Generate 1-3 broad tags"), _constant({"tags": ["General"]})),
    (re.compile(_TASK + r"Suggest 3-5 relevant follow-up"), _constant({"follow_ups": []})),
    (re.compile(_TASK + r"Analyze the chat history to determine the necessity"), _constant({"queries": []})),
    (re.compile(_TASK + r"You are an autocompletion system"), _constant({"text": ""})),
    (re.compile(_TASK + r"Generate a detailed prompt for am? image"), _constant({"prompt": ""})),
    (re.compile(r"Your task is to reflect the speaker's likely facial expression"), lambda prompt: "\U0001f4ac"),
    # LibreChat
    (re.compile(r"(?:Please )?(?:Provide|generate|Write) a concise,? (?:5-word-or-less )?title for (?:the|this) "
                r"conversation", re.IGNORECASE), _title_of),
    (re.compile(r"Analyze this conversation and provide:\s*\n\s*1\.\s*The detected lang", re.IGNORECASE), _title_of),
)  # fmt: skip
"""The beginning of each template, and the answer to the prompt."""
