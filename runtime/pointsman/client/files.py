"""Store, list and save the files of requests and workflows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from pointsman.authoring.files import FileContent, guess_media_type, pieces_of, save_pieces
from pointsman.bus.file_store import FileStore
from pointsman.errors import ConfigurationError
from pointsman_schemas.files import File
from pointsman_schemas.log import Entry, TaskSucceeded, WorkflowStarted

__all__ = ["GivenFile", "WorkflowFile", "list_files", "save_files", "store_file", "store_files"]

GivenFile: TypeAlias = "Path | str | File | tuple[str, FileContent]"
"""A file for a request: a path, a stored file, or a name with content."""


@dataclass(frozen=True, slots=True)
class WorkflowFile:
    """A file of a workflow.

    Attributes:
        file: The reference to the file.
        origin: `request`, or the task that returned the file.
    """

    file: File
    origin: str


def list_files(entries: Sequence[Entry]) -> Sequence[WorkflowFile]:
    """List the files of a workflow, which are the files of its request and the files that tasks returned.

    Args:
        entries: The log of the workflow.

    Returns:
        The files, in the order of the log, each once.
    """
    found: dict[WorkflowFile, None] = {}
    for entry in entries:
        match entry:
            case WorkflowStarted():
                found |= dict.fromkeys(WorkflowFile(file, "request") for file in entry.files)
            case TaskSucceeded():
                found |= dict.fromkeys(WorkflowFile(file, entry.task_id) for file in entry.result.files)
    return tuple(found)


async def store_files(
    store: FileStore, given: Sequence[GivenFile], owner: str, *, copy: bool = False
) -> tuple[File, ...]:
    """Store the files of a request.

    Args:
        store: The files of the namespace.
        given: The files.
        owner: The id of the workflow or of the schedule to which the files will belong.
        copy: True to copy files that are already stored, so that the copies belong to `owner`. Default: False, to use
            the stored files themselves.

    Returns:
        The references.

    Raises:
        BodyLostError: A stored file that must be copied was removed or is damaged.
        ConfigurationError: A path cannot be read.
        ContractError: A name is not valid, or a file is too large.
    """
    files: list[File] = []
    for each in given:
        if isinstance(each, File):
            copied = store_file(store, each.name, store.read(each), owner, each.media_type) if copy else None
            files.append(each if copied is None else await copied)
        elif isinstance(each, tuple):
            files.append(await store_file(store, each[0], each[1], owner))
        else:
            path = Path(each)
            try:
                files.append(await store_file(store, path.name, path, owner))
            except OSError as error:
                raise ConfigurationError(
                    f"the file {path} cannot be read: {error.strerror or error}; check the path"
                ) from None
    return tuple(files)


async def store_file(store: FileStore, name: str, content: FileContent, owner: str, media_type: str = "") -> File:
    """Store one file.

    Args:
        store: The files of the namespace.
        name: The name of the file, without a folder.
        content: The content.
        owner: The id of the workflow to which the file belongs, or `shared`. The file is deleted with its workflow. A
            shared file expires.
        media_type: The media type. Default: guessed from the ending of the name.

    Returns:
        The reference.
    """
    writer = store.create(name, media_type or guess_media_type(name), owner)
    async with aclosing(pieces_of(content)) as pieces:
        async for piece in pieces:
            await writer.write(piece)
    return await writer.finish()


async def save_files(store: FileStore, files: Sequence[WorkflowFile], folder: Path) -> Sequence[Path]:
    """Save files in a folder. A file is never written in part, and no existing file is replaced.

    Args:
        store: The files of the namespace.
        files: The files.
        folder: The folder. A missing folder is created.

    Returns:
        The paths, in the order of the files.

    Raises:
        ConfigurationError: The folder or a file cannot be written.
        BodyLostError: A file was removed, or is damaged.
    """
    paths: list[Path] = []
    try:
        await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
        for each in files:
            path = await asyncio.to_thread(_unused_path, folder, each)
            await save_pieces(_read(store, each.file), path)
            paths.append(path)
    except OSError as error:
        raise ConfigurationError(f"{folder} cannot be written: {error.strerror or error}; check the path") from None
    return paths


def _unused_path(folder: Path, file: WorkflowFile) -> Path:
    """Return the first path of `page.png`, `scan-page.png`, `scan-page-2.png` and so on that does not exist."""
    name = Path(file.file.name)
    wanted = [name.name, f"{file.origin}-{name.name}"]
    wanted += [f"{file.origin}-{name.stem}-{number}{name.suffix}" for number in range(2, 1_000)]
    for each in wanted:
        if not (path := folder / each).exists():
            return path
    raise ConfigurationError(f"{folder} has a thousand files called {name}; give another folder")


def _read(store: FileStore, file: File) -> AsyncGenerator[bytes, None]:
    return store.read(file)
