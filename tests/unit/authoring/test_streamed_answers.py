"""The text of an answer is streamed while the model writes it, without the surrounding JSON. It equals the answer."""

from __future__ import annotations

import json

from support.contexts import new_context, recorded
from support.loops import InstantClock

from pointsman.authoring.llm_agent import LLMAgent
from pointsman.errors import ModelError
from pointsman.ports.model import ModelReply, ModelRequest
from pointsman.testing.models import ScriptedModel, text_reply
from pointsman_agents.synthesizer import synthesizer
from pointsman_schemas.card import Role
from pointsman_schemas.role_io import Synthesis

ANSWER = 'You were charged "twice":\n€5 each. 😀'
WRITTEN = json.dumps({"answer": ANSWER})


def writing(text: str, *, breaks: bool = False) -> ScriptedModel:
    """Return a model that streams `text` in pieces. With `breaks`, the first call streams only half of the text."""

    def reply(request: ModelRequest) -> ModelReply:
        assert request.on_text is not None
        half = breaks and len(model.requests) == 1
        written = text[: len(text) // 2] if half else text
        for start in range(0, len(written), 3):
            request.on_text(written[start : start + 3])
        if half:
            raise ModelError("the connection broke", retryable=True, retry_after=0.0)
        return text_reply(text)

    model = ScriptedModel(reply, reply)
    return model


async def test_answer_of_the_shipped_synthesizer_is_streamed_as_text() -> None:
    context = new_context(update={"role": Role.SYNTHESIZE, "input": {"request": "why?"}})

    output = await synthesizer.with_model(writing(WRITTEN)).run(context.handoff, context)

    pieces = recorded(context).deltas
    assert isinstance(output, dict)
    assert "".join(piece.text for piece in pieces) == output["answer"] == ANSWER
    assert len(pieces) > 5
    assert {piece.role for piece in pieces} == {Role.SYNTHESIZE}


async def test_call_that_is_made_again_writes_its_text_from_the_beginning() -> None:
    agent = LLMAgent(
        name="a", description="d", instructions="i", model=writing(WRITTEN, breaks=True), output=Synthesis, stream=True,
        clock=InstantClock(),
    )  # fmt: skip
    context = new_context()

    await agent.run(context.handoff, context)

    texts: dict[str, str] = {}
    for piece in recorded(context).deltas:
        texts[piece.call] = texts.get(piece.call, "") + piece.text
    first, second = texts.values()
    assert second == ANSWER
    assert ANSWER.startswith(first)
    assert 0 < len(first) < len(ANSWER)
