"""Files in the object store are stored and read in pieces. A file is found complete, or not at all."""

from __future__ import annotations

from contextlib import aclosing
from hashlib import sha256

import pytest
from support.place import BrokerNamespace, bus, place, server

from pointsman.bus.file_store import FileStore
from pointsman.clock import SystemClock
from pointsman.errors import BodyLostError, ContractError
from pointsman.ports.bus import Bus
from pointsman_schemas.files import File
from pointsman_schemas.subjects import Subjects

__all__ = ["bus", "place", "server"]  # fixtures

CONTENT = bytes(range(256)) * 2_000  # four chunks


@pytest.fixture
def files(bus: Bus, place: BrokerNamespace) -> FileStore:
    return FileStore(bus, Subjects(place.ns).artifacts_bucket, SystemClock(), max_bytes=1_000_000)


async def stored(files: FileStore, content: bytes = CONTENT, name: str = "table.bin", owner: str = "wf_1") -> File:
    writer = files.create(name, "application/octet-stream", owner)
    for start in range(0, len(content), 70_000):  # pieces of another size than the chunks
        await writer.write(content[start : start + 70_000])
    return await writer.finish()


async def content_of(files: FileStore, file: File) -> bytes:
    async with aclosing(files.read(file)) as pieces:
        return b"".join([piece async for piece in pieces])


@pytest.mark.parametrize("content", [b"", b"x", CONTENT[:131_072], CONTENT])
async def test_a_file_is_read_as_it_was_stored(files: FileStore, content: bytes) -> None:
    file = await stored(files, content)

    assert file == File(
        name="table.bin",
        media_type="application/octet-stream",
        size=len(content),
        sha256=sha256(content).hexdigest(),
        owner="wf_1",
    )
    assert await content_of(files, file) == content


async def test_equal_contents_under_two_names_are_one_object(
    files: FileStore, bus: Bus, place: BrokerNamespace
) -> None:
    first, second = await stored(files), await stored(files, name="copy.bin")

    assert (first.sha256, second.name) == (second.sha256, "copy.bin")
    assert len(await bus.subjects("artifacts", Subjects(place.ns).objects)) == 1
    assert await content_of(files, second) == CONTENT
    await stored(files, owner="wf_2")  # the other workflow's content stays when the first workflow is forgotten
    assert len(await bus.subjects("artifacts", Subjects(place.ns).objects)) == 2


async def test_a_file_that_is_not_finished_or_not_stored_is_not_found(files: FileStore) -> None:
    writer = files.create("half.bin", "application/octet-stream", "wf_1")
    await writer.write(CONTENT)
    digest = sha256(CONTENT).hexdigest()
    half = File(name="half.bin", media_type="a/b", size=len(CONTENT), sha256=digest, owner="wf_1")

    with pytest.raises(BodyLostError, match=r"'half.bin' is not in the object store"):
        await content_of(files, half)


async def test_a_damaged_file_is_an_error_at_its_end(files: FileStore, bus: Bus, place: BrokerNamespace) -> None:
    file = await stored(files)
    chunks = f"$O.{Subjects(place.ns).artifacts_bucket}.C.>"
    last = await bus.last("artifacts", chunks)
    assert last is not None
    await bus.delete("artifacts", last.sequence)

    with pytest.raises(BodyLostError, match="is damaged: 393216 bytes"):
        await content_of(files, file)
    assert await stored(files) == file  # stored again completely: a reused description would keep the damage
    assert await content_of(files, file) == CONTENT


async def test_a_file_that_is_too_large_is_refused_before_its_end(files: FileStore) -> None:
    writer = files.create("big.bin", "application/octet-stream", "wf_1")
    await writer.write(b"x" * 1_000_000)

    with pytest.raises(ContractError, match=r"is larger than 1000000 bytes \(POINTSMAN_MAX_FILE_BYTES\)"):
        await writer.write(b"x")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\\b", "a\nb", "x" * 256, "\u202egpj.exe"])
def test_a_name_that_is_no_plain_name_is_refused(files: FileStore, name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        files.create(name, "text/plain", "wf_1")
