"""Files over the gateway: uploads, downloads of ranges, and files in the requests of each protocol."""

from __future__ import annotations

import asyncio
import base64
import sys
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from support import factory
from support.factory import RunningTeam
from support.gateway import gateway_process, http_client, served_gateway
from support.processes import System

from pointsman.authoring.agent import agent
from pointsman.authoring.context import Context
from pointsman.gateway.keys import KeyStore
from pointsman.settings import Settings
from pointsman_schemas.team import Limits, Pipeline, Stage, Team

pytestmark = pytest.mark.timeout(120)

DESK = Team(name="desk", strategy=Pipeline(stages=(Stage(agent="scan"),)), limits=Limits(deadline=60))
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
MIB = 1024 * 1024
BIG_BYTES = 48 * MIB
MAX_GROWTH = 24 * MIB
"""Limit of the additional memory that a gateway needs for a file of 48 MiB, compared with a small file."""


@agent(name="scan", description="Lists its files, and returns a page")
async def scan(request: str, context: Context) -> str:
    lines = [f"{name} {file.media_type} {len(await file.read())}" for name, file in context.files.items()]
    await context.files.add("page.txt", b"0123456789")
    return "\n".join([request, *lines])


@pytest.fixture
async def crew(settings: Settings) -> AsyncIterator[RunningTeam]:
    async with factory.team(DESK, [scan], on=settings) as running:
        yield running


@pytest.fixture
async def address(crew: RunningTeam, settings: Settings) -> AsyncIterator[str]:
    async with served_gateway(settings, max_file_bytes=1_000_000) as address:
        yield address


@pytest.fixture
async def client(address: str) -> AsyncIterator[httpx2.AsyncClient]:
    async with http_client(address) as client:
        yield client


async def upload(client: httpx2.AsyncClient, name: str, content: bytes, media_type: str) -> dict[str, Any]:
    headers = {"content-type": media_type}
    made = await client.post("/v1/files", params={"name": name}, content=content, headers=headers)
    assert made.status_code == 201, made.text
    return dict(made.json())


async def test_an_upload_is_used_in_a_request_and_the_files_of_the_workflow_are_read(
    client: httpx2.AsyncClient,
) -> None:
    raw = await upload(client, "a/b\\invoice.pdf", b"%PDF-1.7", "application/pdf")
    again = await upload(client, "invoice.pdf", b"%PDF-1.7", "application/pdf")
    named = await client.post("/v1/files", files={"file": ("über 東京.txt", b"x")})
    form = await client.post("/v1/files", files={"file": ("note.txt", b"pay it")}, data={"purpose": "user_data"})
    read = (await client.get(f"/v1/files/{raw['id']}")).json()
    body = {"team": "desk", "input": "book", "files": [raw["id"], form.json()["id"]]}
    done = await client.post("/v1/workflows", json=body, headers={"prefer": "wait=30"})
    listed = (await client.get(f"/v1/workflows/{done.json()['id']}/files")).json()["files"]
    page = await client.get(listed[-1]["url"])
    absent = await client.get(f"/v1/workflows/{done.json()['id']}/files/{'0' * 64}")

    assert (raw["filename"], raw["bytes"], raw["sha256"]) == ("invoice.pdf", 8, sha256(b"%PDF-1.7").hexdigest())
    assert (again["id"], read) == (raw["id"], raw)
    assert named.json()["filename"] == "über 東京.txt"
    assert done.json()["outcome"]["answer"] == "book\ninvoice.pdf application/pdf 8\nnote.txt text/plain 6"
    assert [(each["name"], each["origin"]) for each in listed] == [
        ("invoice.pdf", "request"), ("note.txt", "request"), ("page.txt", "scan"),
    ]  # fmt: skip
    assert (page.content, page.headers["content-type"]) == (b"0123456789", "text/plain; charset=utf-8")
    assert page.headers["content-disposition"] == "attachment; filename*=UTF-8''page.txt"
    assert absent.status_code == 404


async def test_a_download_has_ranges_and_its_digest_as_etag(client: httpx2.AsyncClient) -> None:
    content = bytes(range(256)) * 2_000  # several chunks of the store
    path = f"/v1/files/{(await upload(client, 'data.bin', content, 'application/octet-stream'))['id']}/content"
    whole = await client.get(path)
    etag = f'"{sha256(content).hexdigest()}"'

    async def part(**headers: str) -> httpx2.Response:
        return await client.get(path, headers={name.replace("_", "-"): value for name, value in headers.items()})

    middle = await part(range="bytes=131000-131999")
    last = await part(range="bytes=-5")
    rest = await part(range="bytes=511990-", if_range=etag)
    several = await part(range="bytes=0-1,5-6")
    changed = await part(range="bytes=0-9", if_range='"another"')
    beyond = await part(range="bytes=512000-")
    known = await part(if_none_match=f'"x", W/{etag}')

    assert (whole.content, whole.headers["etag"], whole.headers["accept-ranges"]) == (content, etag, "bytes")
    assert (middle.status_code, middle.content) == (206, content[131000:132000])
    assert middle.headers["content-range"] == "bytes 131000-131999/512000"
    assert (last.content, rest.content) == (content[-5:], content[511990:])
    assert [(each.status_code, len(each.content)) for each in (several, changed)] == [(200, 512_000)] * 2
    assert (beyond.status_code, beyond.headers["content-range"]) == (416, "bytes */512000")
    assert beyond.json()["code"] == "range_not_satisfiable"
    assert (known.status_code, known.content) == (304, b"")


async def test_a_file_that_is_too_large_or_missing_is_refused(client: httpx2.AsyncClient) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield b"x" * 50_000

    named = await client.post("/v1/files", content=b"x" * 1_100_000)
    streamed = await client.post("/v1/files", content=pieces())
    slightly = await client.post("/v1/files", content=b"x" * 1_000_001)
    empty_form = await client.post("/v1/files", files={"other": b"x"})
    broken = await client.post("/v1/files", content=b"x", headers={"content-type": "multipart/form-data; boundary=b"})
    unknown = f"file-{'0' * 24}-{'0' * 64}"
    used = await client.post("/v1/workflows", json={"team": "desk", "input": "x", "files": [unknown]})

    assert [each.status_code for each in (named, streamed, slightly)] == [413] * 3
    assert "POINTSMAN_MAX_FILE_BYTES" in streamed.json()["detail"]
    assert (empty_form.status_code, empty_form.json()["code"]) == (422, "no_file")
    assert (broken.status_code, broken.json()["code"]) == (400, "invalid_form")
    assert (used.status_code, (await client.get(f"/v1/files/{unknown}")).status_code) == (404, 404)


async def test_files_of_another_caller_do_not_exist(crew: RunningTeam, settings: Settings) -> None:
    store = await KeyStore.open(crew.bus, crew.subjects)
    keys = [(await store.create(name)).text for name in ("ada", "bob")]
    async with served_gateway(settings, gateway_require_key=True) as address:
        async with http_client(address, keys[0]) as ada:
            file = await upload(ada, "a.txt", b"secret", "text/plain")
            body = {"team": "desk", "input": "x", "files": [file["id"]]}
            done = await ada.post("/v1/workflows", json=body, headers={"prefer": "wait=30"})
            files = f"/v1/workflows/{done.json()['id']}/files"
        async with http_client(address, keys[1]) as bob:
            paths = (f"/v1/files/{file['id']}", f"/v1/files/{file['id']}/content", files, f"{files}/{file['sha256']}")
            read = [(await bob.get(path)).status_code for path in paths]
            used = await bob.post("/v1/workflows", json={**body, "files": [file["id"]]})
            own = await upload(bob, "a.txt", b"secret", "text/plain")

    assert done.json()["status"] == "completed"
    assert read == [404] * 4
    assert used.status_code == 404
    assert own["id"] != file["id"]


async def test_the_sdk_of_openai_sends_files_in_each_form(address: str) -> None:
    url = f"data:image/png;base64,{base64.b64encode(PIXEL).decode()}"
    async with openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="none", timeout=30, max_retries=0) as client:
        made = await client.files.create(file=("invoice.pdf", b"%PDF-1.7"), purpose="user_data")
        read = await client.files.retrieve(made.id)
        content = (await client.files.content(made.id)).content
        parts: list[Any] = [
            {"type": "text", "text": "look"},
            {"type": "image_url", "image_url": {"url": url}},
            {"type": "file", "file": {"file_id": made.id}},
            {"type": "file", "file": {"filename": "file.png", "file_data": "data:image/png;base64,aGVsbG8="}},
        ]
        chat = await client.chat.completions.create(model="desk", messages=[{"role": "user", "content": parts}])
        items: list[Any] = [
            {"type": "input_file", "file_id": made.id},
            {"type": "input_image", "image_url": url, "detail": "auto"},
        ]
        first = await client.responses.create(model="desk", input=[{"role": "user", "content": items}])
        second = await client.responses.create(model="desk", input="again", previous_response_id=first.id)
        with pytest.raises(openai.NotFoundError):
            await client.files.retrieve(f"file-{'0' * 24}-{'0' * 64}")

    assert (made.filename, made.bytes, made.object, made.status) == ("invoice.pdf", 8, "file", "processed")
    assert (read.id, content) == (made.id, b"%PDF-1.7")
    assert str(chat.choices[0].message.content).splitlines() == [
        "look", "file.png image/png 70", "invoice.pdf application/pdf 8", "file-2.png image/png 5",
    ]  # fmt: skip
    listed = ["invoice.pdf application/pdf 8", "file.png image/png 70"]
    assert first.output_text.splitlines() == ["The request is in the files.", *listed]
    assert second.output_text.splitlines()[0] == "again"
    assert sorted(second.output_text.splitlines()[-2:]) == sorted(listed)


async def test_a_front_end_that_speaks_ag_ui_sends_a_document(client: httpx2.AsyncClient) -> None:
    source = {"type": "data", "value": "aGVsbG8=", "mimeType": "text/csv"}
    content = [{"type": "text", "text": "look"}, {"type": "document", "source": source}]
    body = {
        "threadId": "t", "runId": "r", "state": {}, "tools": [], "context": [], "forwardedProps": {},
        "messages": [{"id": "m", "role": "user", "content": content}],
    }  # fmt: skip
    run = await client.post("/v1/agui/desk", json=body)

    assert "file.csv text/csv 5" in run.text


async def test_a_large_file_is_not_held_in_memory(settings: Settings, tmp_path: Path) -> None:
    """Measure in up to three gateways. If other processes delay a gateway, the broker sends more ahead."""
    grown: list[int] = []
    async with factory.team(DESK, [scan], on=settings), System(tmp_path / "system", settings) as system:
        while len(grown) < 3 and min(grown, default=MAX_GROWTH) >= MAX_GROWTH:
            grown.append(await growth_for_a_large_file(system))

    sys.stdout.write(f"memory grew by {[round(each / MIB, 1) for each in grown]} MiB for {BIG_BYTES // MIB} MiB\n")
    assert min(grown) < MAX_GROWTH


async def growth_for_a_large_file(system: System) -> int:
    """Send a file to a new gateway, and read it back. Return the additional memory of the gateway, in bytes."""
    piece = bytes(range(256)) * 256
    digest = sha256(piece * (BIG_BYTES // len(piece))).hexdigest()

    async def pieces(number: int) -> AsyncIterator[bytes]:
        for _ in range(number):
            yield piece

    service, address = await gateway_process(system)
    async with http_client(address) as client:

        async def there_and_back(size: int) -> tuple[str, int]:
            made = await client.post("/v1/files", params={"name": "big.bin"}, content=pieces(size // len(piece)))
            read = 0
            async with client.stream("GET", f"/v1/files/{made.json()['id']}/content") as response:
                async for part in response.aiter_bytes():
                    read += len(part)
            return made.json()["sha256"], read

        await there_and_back(BIG_BYTES // 4)  # a first file fills the bounded buffers
        before = peak_memory(service.pid)
        assert await asyncio.wait_for(there_and_back(BIG_BYTES), 60) == (digest, BIG_BYTES)
        return peak_memory(service.pid) - before


def peak_memory(pid: int) -> int:
    """Return the largest resident memory of a process so far, in bytes."""
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024
