"""Define three agents. They find facts about a topic, write a text from the facts, and show code for the topic."""

from __future__ import annotations

import ast
from pathlib import Path

from pydantic import BaseModel

from pointsman import LLMAgent, tool
from pointsman_agents.generalist.library import TOPICS, topic_of

__all__ = ["code", "research", "writing"]

_PROMPTS = Path(__file__).parent


class Facts(BaseModel):
    """The facts about a topic. If no topic was found, `topic` is empty."""

    summary: str
    topic: str
    facts: list[str]


class Text(BaseModel):
    summary: str
    words: int


class Example(BaseModel):
    summary: str
    statements: int


@tool(idempotent=True)
def find_facts(question: str) -> Facts:
    """Find facts about the question."""
    topic = topic_of(question)
    if topic is None:
        known = ", ".join(TOPICS)
        return Facts(summary=f"The library has nothing on this; it has: {known}.", topic="", facts=[])
    facts = list(TOPICS[topic].facts)
    return Facts(summary=f"Facts about {topic}: {' '.join(facts)}", topic=topic, facts=facts)


@tool(idempotent=True)
def compose(topic: str, facts: list[str]) -> Text:
    """Compose a blog post about `topic` from `facts` alone."""
    if not facts:
        return Text(summary="Nothing was written: there are no facts to write from.", words=0)
    body = "\n".join(f"{number}. {fact}" for number, fact in enumerate(facts, 1))
    post = f"# {topic[0].upper()}{topic[1:]}: {len(facts)} things to know\n\n{body}"
    return Text(summary=post, words=len(post.split()))


@tool(idempotent=True)
def show_code(topic: str) -> Example:
    """Show a piece of Python for `topic` that parses."""
    if (known := TOPICS.get(topic)) is None:
        return Example(summary="There is no code to show: no topic was found.", statements=0)
    statements = len(ast.parse(known.code).body)
    return Example(summary=f"Code for {topic} ({statements} statements):\n\n{known.code}", statements=statements)


research = LLMAgent(
    name="research",
    description="Finds facts, trends and what is the latest on a topic",
    skills=["research", "facts"],
    intents=["research_topic"],
    examples=["Research event streaming", "What is the latest on sorting algorithms?", "Find facts about AI trends"],
    instructions=_PROMPTS / "research.md",
    tools=[find_facts],
    output=Facts,
)
writing = LLMAgent(
    name="writing",
    description="Writes content: blog posts, articles, summaries",
    skills=["writing", "content"],
    intents=["write_content"],
    examples=["Write a blog post", "Draft an article"],
    instructions=_PROMPTS / "writing.md",
    tools=[compose],
    output=Text,
)
code = LLMAgent(
    name="code",
    description="Writes program code and code examples",
    skills=["code", "programming", "python"],
    intents=["write_code"],
    examples=["Show code examples", "Program a small example"],
    instructions=_PROMPTS / "code.md",
    tools=[show_code],
    output=Example,
)
