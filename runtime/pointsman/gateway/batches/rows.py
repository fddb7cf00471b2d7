"""Read and check the rows of a batch, store them, and read them back in blocks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from contextlib import aclosing
from typing import Any, NamedTuple

from pydantic import ValidationError

from pointsman.bus.file_store import FileStore
from pointsman.client.batch import BatchInput
from pointsman.errors import ContractError
from pointsman.gateway.problems import ProblemError
from pointsman_schemas.events import Request
from pointsman_schemas.files import File
from pointsman_schemas.strict_json import describe, parse_json

__all__ = ["Rows", "read_rows", "store_rows"]

_MEDIA_TYPE = "application/jsonl"
_MAX_ERRORS = 5  # invalid rows that a problem lists
_BLOCK_BYTES = 1_048_576  # bytes of rows that are read ahead


class Rows(NamedTuple):
    """The rows of a batch in the store, and their number."""

    file: File
    total: int


async def store_rows(
    store: FileStore, owner: str, pieces: AsyncIterable[bytes], *, max_bytes: int, max_rows: int, max_row_bytes: int
) -> Rows:
    """Check each row, and store the rows while they arrive.

    Args:
        store: The files of the namespace.
        owner: The batch.
        pieces: The body: one JSON text or object a line. Empty lines are left out.
        max_bytes: Largest size of the body, in bytes.
        max_rows: Largest number of rows.
        max_row_bytes: Largest size of a row, in bytes.

    Returns:
        The rows.

    Raises:
        ProblemError: A row is not a request, the body is too large, or there is no row.
    """
    writer = store.create("rows.jsonl", _MEDIA_TYPE, owner)
    errors: list[dict[str, Any]] = []
    total = 0
    async with aclosing(_lines(pieces, max_bytes, max_row_bytes)) as lines:
        async for line in lines:
            total += 1
            if total > max_rows:
                raise ProblemError(
                    413,
                    "too_many_rows",
                    f"the batch has more than {max_rows} rows; send several batches, or raise "
                    "POINTSMAN_GATEWAY_BATCH_ROWS",
                    headers={"connection": "close"},
                )
            try:
                _input_of(line)
            except ContractError as error:
                errors.append({"row": total, "message": str(error)})
                if len(errors) == _MAX_ERRORS:
                    break
            if not errors:
                await writer.write(line + b"\n")
    if errors:
        detail = f"row {errors[0]['row']} is no request: {errors[0]['message']}; nothing was sent"
        raise ProblemError(422, "invalid_rows", detail, errors=errors, headers={"connection": "close"})
    if not total:
        raise ProblemError(422, "no_rows", "the batch has no row; send one JSON text or object a line")
    return Rows(await writer.finish(), total)


async def read_rows(store: FileStore, file: File, first: int = 1) -> AsyncIterator[BatchInput]:
    """Yield the rows, read in blocks: no read of the broker stays open while rows wait.

    Args:
        store: The files of the namespace.
        file: The rows.
        first: The number of the first row, from 1.

    Yields:
        The requests.

    Raises:
        BodyLostError: The file was removed.
    """
    while True:
        block = await _read_block(store, file, first)
        if not block:
            return
        for line in block:
            yield _input_of(line)
        first += len(block)


async def _read_block(store: FileStore, file: File, first: int) -> list[bytes]:
    block: list[bytes] = []
    number = size = 0
    async with aclosing(store.read(file)) as pieces, aclosing(_lines(pieces, file.size, file.size)) as lines:
        async for line in lines:
            number += 1
            if number < first:
                continue
            block.append(line)
            size += len(line)
            if size >= _BLOCK_BYTES:
                break
    return block


async def _lines(pieces: AsyncIterable[bytes], max_bytes: int, max_line_bytes: int) -> AsyncGenerator[bytes, None]:
    """Yield the lines that are not empty, without their ends."""
    rest = bytearray()
    size = 0
    async for piece in pieces:
        size += len(piece)
        if size > max_bytes:
            raise ProblemError(
                413,
                "too_large",
                f"the batch has more than {max_bytes} bytes; send less, or raise POINTSMAN_GATEWAY_BATCH_BYTES",
                headers={"connection": "close"},
            )
        rest += piece
        *whole, last = rest.split(b"\n")
        rest = bytearray(last)
        if len(rest) > max_line_bytes or any([len(line) > max_line_bytes for line in whole]):
            raise ProblemError(
                413,
                "too_large",
                f"a row has more than {max_line_bytes} bytes; send less, or raise POINTSMAN_GATEWAY_MAX_BODY",
                headers={"connection": "close"},
            )
        for line in whole:
            if stripped := bytes(line).strip():
                yield stripped
    if stripped := bytes(rest).strip():
        yield stripped


def _input_of(line: bytes) -> BatchInput:
    """Return the request of a row.

    Raises:
        ContractError: The row is not a request.
    """
    try:
        value = Request.model_validate({"input": parse_json(line)}).input
    except ValidationError as error:
        raise ContractError(describe(error)) from None
    return value
