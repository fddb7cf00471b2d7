"""An attempt reads, streams, saves and returns files, and sends files to a model."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from pointsman.authoring.agent import agent
from pointsman.authoring.attempt_state import AttemptState
from pointsman.authoring.context import Context
from pointsman.authoring.files import FileContent, pieces_of
from pointsman.authoring.llm_agent import LLMAgent
from pointsman.authoring.ports import RecordingReporter
from pointsman.authoring.tools import tool
from pointsman.errors import BodyLostError, ConfigurationError, TaskError
from pointsman.llm.attachments import NATIVE_TYPES
from pointsman.ports.model import Attachment
from pointsman.testing.models import ScriptedModel, text_reply
from pointsman_schemas.card import Role
from pointsman_schemas.events import Handoff, TaskReport
from pointsman_schemas.files import File


class Store:
    """A `FileTransfer` in memory."""

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}

    def put(self, name: str, media_type: str, content: bytes) -> File:
        digest = sha256(content).hexdigest()
        self.contents[digest] = content
        return File(name=name, media_type=media_type, size=len(content), sha256=digest, owner="wf_test")

    async def read(self, file: File) -> AsyncGenerator[bytes, None]:
        content = self.contents.get(file.sha256, b"")
        yield content[:4]
        yield content[4:]
        if len(content) != file.size:
            raise BodyLostError(f"the file {file.name!r} is damaged")

    async def store(self, name: str, media_type: str, content: FileContent) -> File:
        return self.put(name, media_type, b"".join([piece async for piece in pieces_of(content)]))


STORE_NAMES = ("invoice.pdf", "page.png", "notes.txt", "table.xlsx")


def context_with(store: Store, *files: File, results: tuple[TaskReport, ...] = ()) -> Context:
    handoff = Context.for_test("do it", results=results).handoff.model_copy(update={"files": files})
    return Context(AttemptState(handoff, RecordingReporter(), transfer=store))


async def test_a_file_is_read_streamed_and_saved(tmp_path: Path) -> None:
    store = Store()
    context = context_with(store, store.put("invoice.pdf", "application/pdf", b"%PDF-1.7 ..."))
    file = context.files["invoice.pdf"]

    assert (file.name, file.media_type, file.size) == ("invoice.pdf", "application/pdf", 12)
    assert await file.read() == b"%PDF-1.7 ..."
    assert [piece async for piece in file.stream()] == [b"%PDF", b"-1.7 ..."]
    assert await file.save(tmp_path) == tmp_path / "invoice.pdf"
    assert (tmp_path / "invoice.pdf").read_bytes() == b"%PDF-1.7 ..."
    with pytest.raises(TaskError, match="has 12 bytes; at most 3 are read at once"):
        await file.read(max_bytes=3)


async def test_a_damaged_file_is_not_saved(tmp_path: Path) -> None:
    store = Store()
    file = store.put("a.txt", "text/plain", b"whole content")
    store.contents[file.sha256] = b"half"

    with pytest.raises(BodyLostError):
        await context_with(store, file).files["a.txt"].save(tmp_path / "a.txt")

    assert await asyncio.to_thread(os.listdir, tmp_path) == []


async def test_files_of_results_have_the_name_of_their_task_where_names_are_equal() -> None:
    store = Store()
    report = TaskReport(
        task_id="scan", agent="scan", intent="scan", status="succeeded",
        files=(store.put("page.png", "image/png", b"2"), store.put("more.png", "image/png", b"3")),
    )  # fmt: skip
    context = context_with(store, store.put("page.png", "image/png", b"1"), results=(report,))

    assert list(context.files) == ["page.png", "scan/page.png", "more.png"]
    assert await context.files["scan/page.png"].read() == b"2"
    with pytest.raises(KeyError, match=r"there is no file 'other'; the files are: page.png, scan/page.png, more.png"):
        context.files["other"]


@pytest.mark.parametrize("kind", ["bytes", "path", "open", "pieces", "async"])
async def test_an_agent_returns_files_of_any_content(tmp_path: Path, kind: str) -> None:
    (tmp_path / "data").write_bytes(b"content")

    async def later() -> AsyncIterator[bytes]:
        yield b"con"
        yield b"tent"

    contents: dict[str, FileContent] = {
        "bytes": b"content",
        "path": tmp_path / "data",
        "open": BytesIO(b"content"),
        "pieces": iter([b"con", b"tent"]),
        "async": later(),
    }
    store = Store()
    context = context_with(store)

    file = await context.files.add("report.csv", contents[kind])

    assert (file.media_type, store.contents[file.sha256]) == ("text/csv", b"content")
    assert context.files.returned == [file]


async def test_a_file_that_is_returned_again_counts_once_and_another_content_is_refused() -> None:
    context = context_with(Store())
    await context.files.add("a.txt", b"one")
    await context.files.add("a.txt", b"one")

    with pytest.raises(ConfigurationError, match=r"'a.txt' was added twice with different content"):
        await context.files.add("a.txt", b"two")
    assert len(context.files.returned) == 1


async def test_a_context_without_a_store_reports_it() -> None:
    with pytest.raises(ConfigurationError, match="run the agent in a worker"):
        await Context.for_test().files.add("a.txt", b"")


# Models


class SeeingModel(ScriptedModel):
    native_types = NATIVE_TYPES


@tool
async def extract(name: str, context: Context) -> str:
    """Return the text of a file."""
    return f"{len(await context.files[name].read())} cells"


def reader(model: ScriptedModel, **given: Any) -> LLMAgent:
    return LLMAgent(name="reader", description="Reads", instructions="Read the files.", model=model, **given)


def given_files(store: Store) -> Context:
    types = ("application/pdf", "image/png", "text/plain", "application/vnd.ms-excel")
    return context_with(store, *(store.put(n, t, n.encode()) for n, t in zip(STORE_NAMES, types, strict=True)))


async def asked(agent_: LLMAgent, model: ScriptedModel, context: Context) -> tuple[str, tuple[Attachment, ...], str]:
    await agent_.run(context.handoff, context)
    (request,) = model.requests
    return request.turns[0].text, request.turns[0].attachments, request.instructions


async def test_a_model_gets_images_and_documents_as_they_are_and_others_as_text() -> None:
    model = SeeingModel(text_reply("read"))
    text, attachments, instructions = await asked(reader(model, extractor=extract), model, given_files(Store()))

    assert [(each.name, each.media_type, each.data) for each in attachments] == [
        ("invoice.pdf", "application/pdf", b"invoice.pdf"),
        ("page.png", "image/png", b"page.png"),
    ]
    assert '"text": "notes.txt"' in text
    assert '"text": "10 cells"' in text
    assert "<files> lists the files" in instructions


async def test_a_model_without_native_blocks_gets_the_text_of_the_extractor_or_a_note() -> None:
    blind, told = ScriptedModel(text_reply("read")), ScriptedModel(text_reply("read"))

    text, attachments, _ = await asked(reader(told, extractor=extract), told, given_files(Store()))
    noted, _, _ = await asked(reader(blind), blind, given_files(Store()))

    assert attachments == ()
    assert '"text": "11 cells"' in text
    assert noted.count("the content is not available to you") == 3


async def test_a_planner_gets_the_list_of_files_but_not_their_contents() -> None:
    model = SeeingModel(text_reply("planned"))
    text, attachments, _ = await asked(reader(model, role=Role.PLAN), model, given_files(Store()))

    assert attachments == ()
    assert '"name": "invoice.pdf"' in text
    assert '"text"' not in text


async def test_a_prompt_without_files_does_not_mention_them() -> None:
    model = SeeingModel(text_reply("read"))
    text, _, instructions = await asked(reader(model), model, context_with(Store()))

    assert "files" not in text
    assert "<files>" not in instructions


def test_an_extractor_that_does_not_take_a_name_is_refused() -> None:
    @tool
    async def wrong(path: str) -> str:
        """Read."""
        return path

    with pytest.raises(ConfigurationError, match="the extractor wrong of agent reader must take the argument `name`"):
        reader(ScriptedModel(), extractor=wrong)


async def test_a_function_agent_reads_files_through_its_context() -> None:
    @agent(name="counter", description="Counts")
    async def counter(request: str, context: Context) -> int:
        return sum(file.size for file in context.files.values())

    store = Store()
    context = context_with(store, store.put("a.txt", "text/plain", b"12345"))
    handoff: Handoff = context.handoff.model_copy(update={"input": "count"})

    assert await counter.run(handoff, context) == 5
