"""Images and documents reach each provider through its real SDK, as native blocks of the provider."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

from support.adapters import Connect, anthropic, asking, every, openai, responses, talking
from support.providers import Answer

from pointsman.llm.output_budget import estimate_input_tokens
from pointsman.ports.model import Attachment, Turn

PDF, PNG = b"%PDF-1.7", b"\x89PNG\r\n"
PDF_64, PNG_64 = b64encode(PDF).decode(), b64encode(PNG).decode()
FILES = (Attachment("a.pdf", "application/pdf", PDF), Attachment("b.png", "image/png", PNG))
ASKED = Turn("user", "What is due?", attachments=FILES)
SENT: dict[Connect, list[dict[str, Any]]] = {
    openai: [
        {"type": "text", "text": "What is due?"},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{PDF_64}"}},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG_64}"}},
    ],
    responses: [
        {"type": "input_text", "text": "What is due?"},
        {"type": "input_file", "filename": "a.pdf", "file_data": f"data:application/pdf;base64,{PDF_64}"},
        {"type": "input_image", "detail": "auto", "image_url": f"data:image/png;base64,{PNG_64}"},
    ],
    anthropic: [
        {
            "type": "document",
            "title": "a.pdf",
            "source": {"type": "base64", "media_type": "application/pdf", "data": PDF_64},
        },
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG_64}},
        {"type": "text", "text": "What is due?"},
    ],
}


@every
async def test_files_are_sent_as_native_blocks(connect: Connect) -> None:
    async with talking(connect, Answer("200 EUR")) as (provider, model):
        reply = await model.complete(asking(turns=(ASKED,)))

    (call,) = provider.calls
    messages = call.body.get("messages") or call.body["input"]
    assert messages[-1]["content"] == SENT[connect]
    assert reply.text == "200 EUR"


def test_files_count_in_the_estimate_of_the_input() -> None:
    without = estimate_input_tokens(asking(turns=(Turn("user", "What is due?"),)))

    assert estimate_input_tokens(asking(turns=(ASKED,))) == without + 3_000 + 1_600
