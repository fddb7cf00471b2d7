"""An agent that translates word by word from a glossary.

Run it with `pointsman worker examples/translator.py`.
"""

from __future__ import annotations

from pydantic import BaseModel

from pointsman import Context, TaskError, agent

GLOSSARY = {
    "german": {"the": "der", "train": "Zug", "leaves": "fährt", "at": "um", "noon": "Mittag"},
    "french": {"the": "le", "train": "train", "leaves": "part", "at": "à", "noon": "midi"},
}


class Passage(BaseModel):
    """A text in `language`, such as `german`."""

    text: str
    language: str


@agent(name="translator", description="Translates a passage into another language", skills=["translation"])
async def translate(passage: Passage, context: Context) -> Passage:
    """Translate the words of the passage that the glossary has."""
    context.progress("consulting the glossary")
    glossary = GLOSSARY.get(passage.language.lower())
    if glossary is None:
        raise TaskError(f"no glossary for {passage.language}; there is one for {' and '.join(GLOSSARY)}")
    words = passage.text.split()
    known = [word for word in words if word.lower() in glossary]
    context.set_confidence(len(known) / max(len(words), 1))
    return Passage(text=" ".join(glossary.get(word.lower(), word) for word in words), language=passage.language)
